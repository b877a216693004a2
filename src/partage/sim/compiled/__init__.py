"""The hot loops node by node, compiled where numba (the extra `fast`) is installed.

They give the numbers of the NumPy rules, bit for bit (a law under test): the same checks, the same
floating-point operations in the same order. Without numba the functions are plain Python, which is
how the law is tried where numba is missing; no other code calls them then.

No module imports loops from another one: the cache of compiled code is made anew when the file of
a function changes, and not when that of a function it calls does.
"""
