// Everything of Orca that needs no framework.
#pragma once

#include "orca/comm/communicator.h"
#include "orca/data/array_store.h"
#include "orca/data/arrow.h"
#include "orca/learn/schedule.h"
#include "orca/learn/trigger.h"
#include "orca/runtime/context.h"
#include "orca/runtime/program.h"
