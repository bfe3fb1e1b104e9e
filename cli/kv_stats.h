// withyctl contexts stats. Neighbour: contexts.cc lists it with the other commands of contexts.
#pragma once

#include <string>

#include "cli/command.h"
#include "withy/v1/context_store.pb.h"

namespace withy::cli {

// Tables of KV by format, the arena, the disk, and what happened since the start.
std::string KvStatsText(const v1::GetStoreInfoResponse& info);

int RunKvStats(const Args& args);

}  // namespace withy::cli
