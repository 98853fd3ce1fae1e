def chain_of(error):
    """Yields the exception and its causes, the last raised first."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def at(error):
    return ""


def shorten(path):
    """Returns a path as the user would write it: relative to the working folder if it lies within."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
