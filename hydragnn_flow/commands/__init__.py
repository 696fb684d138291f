"""The commands of the command line, by purpose.

Each command imports what it needs only when it runs, so that help and errors of usage appear at
once.
"""
