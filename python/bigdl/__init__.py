"""The import root of BigDL 2.x, on Orca: scripts written for ``bigdl.orca`` run as they are.

See docs/migrating.md for what differs.
"""

from orca.roots.modules import add_root

add_root(__name__)
