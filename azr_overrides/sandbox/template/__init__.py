"""Everything that runs in the template process and its children.

Standard library and relative imports only, so that a template can load this folder alone, as a package of its
own, without importing the rest of the project into the process in which programs run.
"""
