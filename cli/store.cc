// withyctl store: what the operator does with all conversations at once: the master key, backups,
// repair.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "cli/backup_files.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"

namespace withy::cli {
namespace {

int RunRotateKey(const Args& args) {
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto rotated = (*client)->RotateMasterKey();
  if (!rotated.ok()) return Fail(rotated.status());
  std::cout << "the master key was replaced; the new one has id " << rotated->master_key_id()
            << ". Backups that were made before need the key that they were made with\n";
  return kExitOk;
}

absl::Status Backup(Client& client, const Args& args, BackupInfo* info) {
  v1::BeginBackupRequest request;
  request.set_without_master_key(args.Has("without-key"));
  WITHY_ASSIGN_OR_RETURN(const v1::BeginBackupResponse begun, client.BeginBackup(request));
  info->master_key_id = begun.master_key_id();
  info->created_unix_s = Clock::Real().UnixNanos() / kNanosPerSecond;
  absl::Status written = WriteBackup(begun.directory(), args.positional()[0], info);
  if (absl::IsPermissionDenied(written)) {
    written = Annotate(written, "run this as root, or as the service's user");
  }
  v1::EndBackupRequest end;
  end.set_backup_id(begun.backup_id());
  const absl::Status ended = client.EndBackup(end).status();
  return written.ok() ? ended : written;
}

int RunBackup(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("store backup takes one DIR");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  BackupInfo info;
  if (const absl::Status made = Backup(**client, args, &info); !made.ok()) return Fail(made);
  std::cout << args.positional()[0] << " has all conversations: " << Counted(info.files, "file")
            << ", " << Bytes(info.bytes) << ", "
            << (info.has_master_key
                    ? "with the master key: whoever can read the directory can read them\n"
                    : absl::StrCat("without the master key, of id ", info.master_key_id,
                                   ", which a restore needs\n"));
  return kExitOk;
}

int RunRestore(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("store restore takes one DIR");
  const auto config = LoadConfig(args.Get("config"));
  if (!config.ok()) return Fail(config.status());
  const auto restored = RestoreBackup(args.positional()[0], config->state_dir());
  if (!restored.ok()) return Fail(restored.status());
  std::cout << config->state_dir() << " has the conversations of the backup of "
            << Ago(restored->created_unix_s, Clock::Real().UnixNanos() / kNanosPerSecond)
            << (restored->has_master_key
                    ? "; start the service\n"
                    : absl::StrCat("; it needs the master key of id ", restored->master_key_id,
                                   ": put it there, and start the service\n"));
  return kExitOk;
}

// The database is the context store's business: a program of its own knows it.
int RunRepair(const Args& args) {
  const auto config = LoadConfig(args.Get("config"));
  if (!config.ok()) return Fail(config.status());
  std::error_code error;
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "withy-store-repair";
  execl(program.c_str(), "withy-store-repair", config->state_dir().c_str(), nullptr);
  return Fail(absl::NotFoundError(
      absl::StrCat("cannot run ", program, ": ", std::strerror(errno),
                   ": it is installed with the service; run withyctl on the board")));
}

int RunCheck(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("store check takes one DIR");
  const auto info = CheckBackup(args.positional()[0]);
  if (!info.ok()) return Fail(info.status());
  std::cout << "the backup is complete: " << Counted(info->files, "file") << ", "
            << Bytes(info->bytes) << ", made "
            << Ago(info->created_unix_s, Clock::Real().UnixNanos() / kNanosPerSecond)
            << ", master key of id " << info->master_key_id
            << (info->has_master_key ? " included\n" : " not included\n");
  return kExitOk;
}

}  // namespace

std::vector<Command> StoreCommands() {
  return {
      {"store rotate-key", "", "replace the master key that text and KV on disk are encrypted with",
       WithConnection({}), RunRotateKey},
      {"store backup", "DIR",
       "copy all conversations and their keys to a new directory while the service runs",
       WithConnection({{"without-key", "",
                        "leave out the master key, which then must be kept "
                        "elsewhere"}}),
       RunBackup},
      {"store check", "DIR", "check that a backup is complete and unchanged", {}, RunCheck},
      {"store restore",
       "DIR",
       "put a backup into the state directory of a stopped service that has no conversations",
       {{"config", "FILE", "the service's configuration (default /etc/withy/withy.textproto)"}},
       RunRestore},
      {"store repair",
       "",
       "make the conversations of a stopped service readable again after damage to their database; "
       "it is kept as it was beside the repaired one",
       {{"config", "FILE", "the service's configuration (default /etc/withy/withy.textproto)"}},
       RunRepair},
  };
}

}  // namespace withy::cli
