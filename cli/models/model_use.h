// withyctl models use and models packed: which model is served, and the packed files of those that
// are not. Neighbour: models.cc lists the commands.
#pragma once

#include "cli/flags.h"

namespace withy::cli {

int RunUse(const Args& args);
int RunPacked(const Args& args);

}  // namespace withy::cli
