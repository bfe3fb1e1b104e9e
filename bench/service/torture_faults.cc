#include "bench/service/torture_faults.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/service/torture_client.h"
#include "engine/model/synth.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

constexpr char kLibrary[] = "withy-bench-read-errors.so";
constexpr absl::Duration kFaultPatience = absl::Seconds(60);
// The smallest arena that a configuration may have; a chunk of the model has 139 KiB.
constexpr uint64_t kSmallArenaBytes = 1 << 20;
constexpr int kLongPromptWords = 300;  // several tokens each

}  // namespace

absl::StatusOr<std::unique_ptr<FaultInjector>> FaultInjector::Create(const std::string& directory) {
  const fs::path library = fs::read_symlink("/proc/self/exe").parent_path() / kLibrary;
  if (!fs::exists(library)) return absl::NotFoundError(absl::StrCat("no ", library.string()));
  const std::string path = directory + "/faults";
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid() || ftruncate(file.get(), sizeof(FaultControl)) != 0) {
    return ErrnoError("make " + path);
  }
  std::unique_ptr<FaultInjector> injector(new FaultInjector());
  WITHY_ASSIGN_OR_RETURN(injector->memory_, SharedMemory::Map(file.get(), sizeof(FaultControl),
                                                              SharedMemory::Access::kReadWrite));
  new (injector->memory_.data()) FaultControl{};
  injector->environment_ = {absl::StrCat("LD_PRELOAD=", library.string()),
                            absl::StrCat(kFaultFileVariable, "=", path)};
  return injector;
}

absl::StatusOr<v1::GetStoreInfoResponse> AskStore(const Processes& processes) {
  const auto stub = v1::ContextStore::NewStub(
      rpc::Connect("unix:" + processes.run_dir() + "/context_store.sock"));
  v1::GetStoreInfoResponse info;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(10));
  context.set_wait_for_ready(true);
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(stub->GetStoreInfo(&context, {}, &info)));
  return info;
}

absl::Status TakeLeases(const Processes& board, const std::string& directory,
                        const std::string& model) {
  WITHY_ASSIGN_OR_RETURN(const v1::GetStoreInfoResponse before, AskStore(board));
  fs::create_directory(directory);
  const std::string config =
      absl::StrCat("log_level: \"warn\"\nmodel { path: \"", model, "\" threads: 1 }\n",
                   "store { listen: \"unix:", board.run_dir(), "/context_store.sock\" }\n");
  WITHY_ASSIGN_OR_RETURN(Processes other, Processes::Create(directory, config));
  WITHY_RETURN_IF_ERROR(other.Start("model_worker"));
  const absl::Time end = absl::Now() + kFaultPatience;
  for (uint64_t epoch = before.epoch(); epoch == before.epoch();) {
    if (absl::Now() > end) {
      return absl::DeadlineExceededError(
          absl::StrCat("a second worker does not attach: ", other.LogTail("model_worker")));
    }
    absl::SleepFor(absl::Milliseconds(5));
    WITHY_ASSIGN_OR_RETURN(const v1::GetStoreInfoResponse now, AskStore(board));
    epoch = now.epoch();
  }
  return absl::OkStatus();
}

absl::Status TrySmallArena(const std::string& directory) {
  fs::create_directory(directory);
  WITHY_ASSIGN_OR_RETURN(engine::SynthShape shape, engine::FindSynthShape("tiny"));
  shape.layers = shape.kv_heads = 8;
  shape.head_dim = 64;
  shape.context_length = 2048;
  WITHY_ASSIGN_OR_RETURN(const engine::GgmlType type, engine::FindSynthType("q8_0"));
  const std::string model = directory + "/model.gguf";
  WITHY_RETURN_IF_ERROR(engine::WriteSynthModel(shape, type, /*seed=*/3, model));
  const std::string config = absl::StrCat(
      "log_level: \"warn\"\norchestrator { tlm_path: \"off\" audit_off: true probe_off: true }\n",
      "model { path: \"", model, "\" threads: 2 idle_upgrade_s: 0 }\ndraft { path: \"", model,
      "\" threads: 1 }\nstore { arena_bytes: ", kSmallArenaBytes,
      " }\nprofiler { metrics_listen: \"off\" }\n");
  WITHY_ASSIGN_OR_RETURN(Processes processes, Processes::Create(directory, config));
  for (const std::string& name : kAllProcesses) WITHY_RETURN_IF_ERROR(processes.Start(name));
  WITHY_ASSIGN_OR_RETURN(
      const std::unique_ptr<TortureApp> app,
      TortureApp::Create("unix:" + processes.run_dir() + "/withy.sock", /*app=*/0));
  WITHY_ASSIGN_OR_RETURN(const std::string context_id, app->CreateContext("small"));
  std::string prompt;
  for (int i = 0; i < kLongPromptWords; ++i) absl::StrAppend(&prompt, "word", i, " ");
  absl::Status refused;
  const absl::Time end = absl::Now() + kFaultPatience;
  do {  // the model may still be opening
    refused = app->Say(context_id, prompt).status();
    if (absl::IsUnavailable(refused)) absl::SleepFor(absl::Milliseconds(50));
  } while (absl::IsUnavailable(refused) && absl::Now() < end);
  if (!absl::IsOutOfRange(refused)) {
    return absl::InternalError(absl::StrCat("a prompt that the arena has no room for ended as ",
                                            refused.ToString(), " instead of OUT_OF_RANGE"));
  }
  WITHY_RETURN_IF_ERROR(Annotate(app->Say(context_id, "short").status(), "a prompt that fits"));
  WITHY_ASSIGN_OR_RETURN(const int messages, app->Messages(context_id));
  if (messages != 2) {
    return absl::InternalError(
        absl::StrCat("the record has ", messages, " messages: a refused call has left some"));
  }
  return absl::OkStatus();
}

}  // namespace withy::bench
