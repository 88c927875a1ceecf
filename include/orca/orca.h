// Everything of Orca that needs no framework.
#pragma once

#include "orca/comm/communicator.h"
#include "orca/data/array_store.h"
#include "orca/data/arrow.h"
#include "orca/io/array_file.h"
#include "orca/io/async_writer.h"
#include "orca/io/checkpoint_store.h"
#include "orca/io/event_file.h"
#include "orca/io/safetensors.h"
#include "orca/io/torch_file.h"
#include "orca/learn/gradient_exchange.h"
#include "orca/learn/metric.h"
#include "orca/learn/schedule.h"
#include "orca/learn/trigger.h"
#include "orca/runtime/context.h"
#include "orca/runtime/program.h"
