"""Lists: `storage` bounds their lengths and finds which may share memory, `slots` assigns memory
to the lists that functions take and return, `ops` lowers the list ops."""
