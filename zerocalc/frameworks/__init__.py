"""How a step runs under each framework: one file a framework, a short program over the ledger and
the schedule.
"""
