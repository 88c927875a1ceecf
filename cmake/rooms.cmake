# The rooms of the engine and whose public headers each may include: the one list. tools/check_rooms.py compares every
# include and import with it. A room may always include its own headers.
set(ORCA_ROOMS core net comm data runtime learn)
set(ORCA_ROOM_core_USES)
set(ORCA_ROOM_net_USES core)
set(ORCA_ROOM_comm_USES net core)
set(ORCA_ROOM_data_USES core)
set(ORCA_ROOM_runtime_USES comm data net core)
set(ORCA_ROOM_learn_USES runtime comm data net core)
