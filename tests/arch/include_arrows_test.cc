// Checks the include arrows of ARCHITECTURE.md for every source file:
//   base <- http;  base <- telemetry <- engine <- grammar;  base <- policy;  base, telemetry,
//   engine, policy <- serving;  base <- rpc;  processes, cli, offline and bench stand above;
//   processes meet in proto/ only, and nobody includes a process.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

namespace fs = std::filesystem;
using Parts = std::set<std::string>;

// Parts that each part may include besides itself. All may include the contract, except engine and
// telemetry.
const std::map<std::string, Parts>& Allowed() {
  static const Parts lower = {"base", "http", "telemetry", "engine", "policy", "rpc", "wire"};
  static const auto* allowed = [] {
    auto* map = new std::map<std::string, Parts>{
        {"base", {}},
        {"http", {"base"}},
        {"telemetry", {"base"}},
        {"engine", {"base", "telemetry"}},
        {"policy", {"base"}},
        {"grammar", {"base", "engine"}},
        {"rpc", {"base"}},
        {"wire", {"base", "engine", "policy"}},
        {"serving", {"base", "telemetry", "engine", "policy"}},
        {"store_client", {"base", "telemetry", "engine", "policy", "rpc", "serving", "wire"}},
    };
    for (const char* process :
         {"orchestrator", "model_worker", "draft_worker", "context_store", "profiler_agent"}) {
      (*map)[process] = lower;
    }
    (*map)["orchestrator"].insert("grammar");
    (*map)["model_worker"].insert({"grammar", "serving", "store_client"});
    (*map)["draft_worker"].insert({"grammar", "serving"});
    (*map)["cli"] = lower;
    (*map)["examples"] = {};
    (*map)["offline"] = {"base", "telemetry", "engine"};
    (*map)["bench"] = {"base", "telemetry", "engine",  "policy",       "rpc",
                       "wire", "offline",   "serving", "store_client", "grammar"};
    return map;
  }();
  return *allowed;
}

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

// The quoted includes of a file.
std::vector<std::string> QuotedIncludes(const fs::path& path) {
  std::vector<std::string> includes;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t start = line.find("#include \"");
    if (start != 0) continue;
    const size_t end = line.find('"', 10);
    includes.push_back(line.substr(10, end - 10));
  }
  return includes;
}

std::string FirstPart(const std::string& path) { return path.substr(0, path.find('/')); }

// One line for each include in `path` that violates the arrows.
std::vector<std::string> Violations(const std::string& part, const fs::path& path) {
  std::vector<std::string> found;
  const Parts& allowed = Allowed().at(part);
  const bool sees_contract = part != "engine" && part != "telemetry" && part != "policy" &&
                             part != "http" && part != "serving";
  for (const std::string& include : QuotedIncludes(path)) {
    const std::string target = FirstPart(include);
    const bool ours = Allowed().contains(target);
    // A benchmark starts context_store with a contestant's way to keep KV, and model_worker with
    // hooks.
    const bool starts_process = part == "bench" && (include == "context_store/process.h" ||
                                                    include == "model_worker/process.h");
    const bool against = ours && target != part && !allowed.contains(target) && !starts_process;
    const bool contract = target == "withy" && !sees_contract;
    const bool grpc_outside_rpc =
        target == "grpcpp" && (part == "base" || part == "http" || part == "engine" ||
                               part == "telemetry" || part == "policy" || part == "serving");
    if (against || contract || grpc_outside_rpc) {
      found.push_back(path.string() + " includes \"" + include + "\"");
    }
  }
  return found;
}

TEST(IncludeArrows, EveryIncludeRunsDownwards) {
  std::vector<std::string> found;
  size_t files = 0;
  for (const auto& [part, unused] : Allowed()) {
    if (!fs::exists(part)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(part)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      ++files;
      for (std::string& line : Violations(part, entry.path())) found.push_back(std::move(line));
    }
  }
  EXPECT_GT(files, 20u) << "run from the repository's root";
  EXPECT_THAT(found, ::testing::IsEmpty());
}

TEST(IncludeArrows, AFileAgainstTheArrowsIsFound) {
  const fs::path file = fs::path(::testing::TempDir()) / "withy_arrows.h";
  std::ofstream(file)
      << "#include \"engine/kv/block.h\"\n#include \"base/ids.h\"\n#include \"rpc/server.h\"\n"
         "#include \"withy/v1/types.pb.h\"\n";
  EXPECT_EQ(Violations("telemetry", file).size(), 3u);
  EXPECT_EQ(Violations("cli", file).size(), 0u);
  fs::remove(file);
}

}  // namespace
}  // namespace withy
