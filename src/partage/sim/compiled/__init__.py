"""The hot loops node by node, compiled where numba (the extra `fast`) is installed.

They give the same numbers as the NumPy rules, bit for bit (a law under test): the same checks, the same floating-point
operations in the same order. Without numba the functions are plain Python. Only the law's test calls them then.

No module imports loops from another one. The cache of compiled code is renewed when a function's own file changes, but
not when the file of a function that it calls changes.
"""
