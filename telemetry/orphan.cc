#include "telemetry/orphan.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "base/unique_fd.h"
#include "telemetry/layout.h"

namespace withy::telemetry {

void RemoveIfOrphan(const std::string& path) {
  // Non-blocking, because the path may be a pipe.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  std::array<char, kRingMagic.size()> magic{};
  if (info.st_uid != geteuid() || pread(fd.get(), magic.data(), magic.size(), 0) != magic.size() ||
      magic != kRingMagic) {
    return;
  }
  if (flock(fd.get(), LOCK_SH | LOCK_NB) == 0) unlink(path.c_str());
}

}  // namespace withy::telemetry
