# The rooms of the engine and whose public headers each may include: the one list. tools/check_rooms.py compares every
# include and import with it. A room may always include its own headers.
set(ORCA_ROOMS core net io comm data runtime learn tune nn)
# Those that know torch: liborca_torch.so. All others are liborca.so.
set(ORCA_TORCH_ROOMS nn)
set(ORCA_ENGINE_ROOMS ${ORCA_ROOMS})
list(REMOVE_ITEM ORCA_ENGINE_ROOMS ${ORCA_TORCH_ROOMS})

set(ORCA_ROOM_core_USES)
set(ORCA_ROOM_net_USES core)
set(ORCA_ROOM_io_USES core)
set(ORCA_ROOM_comm_USES net core)
set(ORCA_ROOM_data_USES io core)
set(ORCA_ROOM_runtime_USES comm data net io core)
set(ORCA_ROOM_learn_USES runtime comm data net io core)
set(ORCA_ROOM_tune_USES io core)
set(ORCA_ROOM_nn_USES learn runtime comm data net io core)
