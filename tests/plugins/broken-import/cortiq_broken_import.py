"""Needs a package that nobody has."""

import the_driver_nobody_installed  # noqa: F401
