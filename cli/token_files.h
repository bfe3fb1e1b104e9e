// The tokens that `apps bind` keeps: a file for each app, and a link to that of the app bound last,
// which commands use unless they are told otherwise. In $XDG_CONFIG_HOME/withy, else
// ~/.config/withy:
//   NAME.token           one line, mode 0600
//   token -> NAME.token  a plain file where an older withyctl wrote it; read all the same
// Neighbours: apps.cc writes them, client.cc reads. Knows nothing of the service.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy::cli {

// Errors: INVALID_ARGUMENT unless it is 1 to 64 of letters, digits, '.', '_' and '-', as the
// service wants it; so a name is a file's name, too.
absl::Status CheckAppName(const std::string& app);

// Errors: FAILED_PRECONDITION when neither XDG_CONFIG_HOME nor HOME is set.
absl::StatusOr<std::string> TokenDir();

// Errors: INVALID_ARGUMENT (the name), NOT_FOUND (no token is kept), as TokenDir().
absl::StatusOr<std::string> ReadToken(const std::string& app);

// Of the app bound last; empty when there is none.
std::string ReadDefaultToken();

// One app's file, open for writing before the token exists: a token is given once, so there must be
// a place for it first. Used by one thread; unless saved it leaves nothing behind.
class TokenFile {
 public:
  // Errors: INVALID_ARGUMENT (the name), as TokenDir(), and of the file system, naming the path.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Create(const std::string& app);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }

  // Puts the token in place; where an older withyctl's plain file has an earlier one of this app,
  // it becomes the link. Errors: of the file system.
  absl::Status Save(const std::string& token);

  // Makes it the one that is used by default; after Save(). Errors: of the file system.
  absl::Status MakeDefault();

  // ID of an app whose token lay in the way of either, and is now in ID.token: of the same name on
  // another service, or in an older withyctl's plain file. Empty: none did.
  const std::string& moved_app_id() const { return moved_app_id_; }

 private:
  TokenFile() = default;
  // Moves the token of another app than `token`'s out of `path`: there is no copy of it.
  absl::Status KeepOther(const std::string& path, const std::string& token);

  std::string dir_;
  std::string path_;
  std::string fresh_;  // the unfinished file; empty: it has been put in place
  UniqueFd file_;
  std::string token_;
  std::string moved_app_id_;
};

}  // namespace withy::cli
