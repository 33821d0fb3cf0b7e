"""The forms of serving, one class for each: the fields of a request, how texts become ids, and the answers."""
