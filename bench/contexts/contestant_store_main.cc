// withy-bench-context-store: context_store that treats KV as the contestant that $WITHY_CONTESTANT
// names (contestants.h).
#include <cstdlib>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/contexts/contestants.h"
#include "context_store/process.h"
#include "rpc/daemon.h"

int main(int argc, char** argv) {
  return withy::rpc::RunDaemon(
      argc, argv, "context_store",
      [](const withy::proto::Config& config)
          -> absl::StatusOr<std::unique_ptr<withy::rpc::Process>> {
        const char* const name = std::getenv(withy::bench::kContestantVariable);
        WITHY_ASSIGN_OR_RETURN(const withy::bench::Contestant contestant,
                               withy::bench::FindContestant(name == nullptr ? "withy" : name));
        return withy::context_store::StartContextStore(config, withy::UniqueFd(), contestant.store);
      });
}
