// withyctl contexts stats: the KV of all contexts in memory and on disk, for the operator.
#include "cli/kv_stats.h"

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/output.h"

namespace withy::cli {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string FormatName(v1::KvFormat format) {
  switch (format) {
    case v1::KV_FORMAT_Q8:
      return "8 bits";
    case v1::KV_FORMAT_Q8_GLOBAL:
      return "8 bits, less what windows hide";
    case v1::KV_FORMAT_Q4:
      return "4 bits";
    case v1::KV_FORMAT_Q4_Q2:
      return "K 4, V 2 bits";
    case v1::KV_FORMAT_Q2:
      return "2 bits";
    default:
      return absl::StrCat("format ", static_cast<int>(format));
  }
}

std::string Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? ""
                    : absl::StrFormat("%.0f %%", 100.0 * static_cast<double>(part) /
                                                     static_cast<double>(whole));
}

}  // namespace

std::string KvStatsText(const v1::GetStoreInfoResponse& info) {
  Rows formats = {{"KV", "IN MEMORY", "ON DISK"}};
  uint64_t resident = 0, stored = 0;
  for (const v1::KvFormatBytes& format : info.kv()) {
    formats.push_back({FormatName(format.format()), Bytes(format.resident_bytes()),
                       Bytes(format.stored_bytes())});
    resident += format.resident_bytes();
    stored += format.stored_bytes();
  }
  formats.push_back({"all", Bytes(resident), Bytes(stored)});
  const uint64_t opened = info.opened_resident() + info.opened_partly() + info.opened_without();
  Rows arena = {{"ARENA", ""},
                {"size", Bytes(info.arena_bytes())},
                {"free", Bytes(info.arena_free_bytes())},
                {"largest gap", Bytes(info.arena_largest_gap_bytes())},
                {"quarantined", Bytes(info.arena_quarantined_bytes())},
                {"given back to the system", Bytes(info.arena_withheld_bytes())},
                {"locked into memory", Bytes(info.arena_locked_bytes())},
                {"chunks that contexts share", absl::StrCat(info.shared_chunks())},
                {"saved by sharing", Bytes(info.shared_saved_bytes())}};
  const v1::KvDisk& disk = info.disk();
  const double amplification = static_cast<double>(disk.written_bytes()) /
                               static_cast<double>(std::max<uint64_t>(disk.kv_bytes(), 1));
  Rows since = {
      {"SINCE THE START", ""},
      {"contexts opened", absl::StrCat(opened)},
      {"  all in memory",
       absl::StrCat(info.opened_resident(), "  ", Share(info.opened_resident(), opened))},
      {"  partly", absl::StrCat(info.opened_partly(), "  ", Share(info.opened_partly(), opened))},
      {"  on disk",
       absl::StrCat(info.opened_without(), "  ", Share(info.opened_without(), opened))},
      {"chunks kept over a restart", absl::StrCat(info.kept_chunks())},
      {"chunks dropped there", absl::StrCat(info.unkept_chunks())},
      {"chunks taken over from others", absl::StrCat(info.taken_over_chunks())},
      {"chunks compressed", absl::StrCat(info.demoted_chunks())},
      {"chunks evicted", absl::StrCat(info.evicted_chunks())},
      {"chunks read", absl::StrCat(info.read_chunks())},
      {"chunks written", absl::StrCat(info.written_chunks())},
      {"chunks not written", absl::StrCat(info.unwritten_chunks())},
      {"chunks that did not match", absl::StrCat(info.faults())},
      {"write amplification", disk.kv_bytes() == 0 ? "" : absl::StrFormat("%.3f", amplification)},
      {"segments given up for room", absl::StrCat(disk.given_up_segments())},
      {"damage on disk",
       absl::StrCat(disk.missing_extents(), " missing, ", disk.cut_extents(), " cut, ",
                    disk.wrong_extents(), " wrong, ", disk.unread_extents(), " unread")}};
  Rows on_disk = {{"DISK", ""},
                  {"segments", absl::StrCat(disk.segments(), ", ", Bytes(disk.disk_bytes()))},
                  {"in use", Bytes(disk.live_bytes())},
                  {"written within 24 h", absl::StrCat(Bytes(disk.written_day_bytes()), " of ",
                                                       Bytes(disk.daily_limit_bytes()))}};
  return absl::StrCat(Table(formats), "\n", Table(arena), "\n", Table(on_disk), "\n", Table(since));
}

int RunKvStats(const Args& args) {
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto info = (*client)->GetStoreInfo();
  if (!info.ok()) return Fail(info.status());
  std::cout << (args.Has("json") ? ToJson(*info) + "\n" : KvStatsText(*info));
  return kExitOk;
}

}  // namespace withy::cli
