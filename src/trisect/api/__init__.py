"""What a user of Python calls, and what such a call shows and leaves behind; `trisect train` shows the same.

Knows training and reports; nothing of arguments of a command line.
"""
