"""Tests of zerocalc; a package, so that tests share helpers and texts can be renewed with ``python
-m``.
"""
