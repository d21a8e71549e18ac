"""What is derived from estimates: plans, suggestions, notes, assumptions, explanations and
timelines.
"""
