// The disk queue of base/ under the names that this process uses.
#pragma once

#include "base/disk_io.h"

namespace withy::context_store {

using withy::DiskCompletion;
using withy::DiskError;
using withy::DiskFileMode;
using withy::DiskQueue;
using withy::DiskRequest;
using withy::kDiskAlign;
using withy::OpenDiskFile;
using withy::SupportsDirectIo;

}  // namespace withy::context_store
