// Stored tokens of `apps bind`: one file per app, and a link to the file of the app bound last,
// which is the default of all commands. In $XDG_CONFIG_HOME/withy, else ~/.config/withy:
//   NAME.token           one line, mode 0600
//   token -> NAME.token  a plain file if an older withyctl wrote it; also read
// Neighbours: apps.cc writes them, client.cc reads them. Knows nothing of the service.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy::cli {

// Errors: INVALID_ARGUMENT unless `app` has 1 to 64 characters out of letters, digits, '.', '_' and
// '-', as the service requires. Every valid name is also a file name.
absl::Status CheckAppName(const std::string& app);

// Errors: FAILED_PRECONDITION if neither XDG_CONFIG_HOME nor HOME is set.
absl::StatusOr<std::string> TokenDir();

// Errors: INVALID_ARGUMENT (the name), NOT_FOUND (no stored token), as TokenDir().
absl::StatusOr<std::string> ReadToken(const std::string& app);

// Token of the app bound last; empty if there is none.
std::string ReadDefaultToken();

// One app's file, opened for writing before the token exists: the service returns a token only
// once, so its place must be ready. Single-threaded. Leaves nothing behind unless saved.
class TokenFile {
 public:
  // Errors: INVALID_ARGUMENT (the name), as TokenDir(), and of the file system, naming the path.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Create(const std::string& app);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }

  // Stores the token. If an older withyctl's plain file holds a token of this app, it becomes the
  // link. Errors: of the file system.
  absl::Status Save(const std::string& token);

  // Makes this token the default; call after Save(). Errors: of the file system.
  absl::Status MakeDefault();

  // Id of another app whose token had to be moved to ID.token: an app of the same name on another
  // service, or the app of an older withyctl's plain file. Empty: none.
  const std::string& moved_app_id() const { return moved_app_id_; }

 private:
  TokenFile() = default;
  // Moves the token at `path` aside if it belongs to another app than `token`, as it is the only
  // copy.
  absl::Status KeepOther(const std::string& path, const std::string& token);

  std::string dir_;
  std::string path_;
  std::string fresh_;  // the unfinished file; empty: already in place
  UniqueFd file_;
  std::string token_;
  std::string moved_app_id_;
};

}  // namespace withy::cli
