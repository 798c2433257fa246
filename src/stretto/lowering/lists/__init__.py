"""Lists: `storage` finds out how long they may become and which share memory, `slots` where those
live that functions take and return, `ops` lowers what the Program does to them.
"""
