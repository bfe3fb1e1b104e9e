#include "cli/models/token_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/environment.h"
#include "base/status.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameBytes = 64;
constexpr char kDefault[] = "/token";
constexpr char kRemedy[] = "set XDG_CONFIG_HOME to a directory of yours";

std::string ReadLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  absl::StripAsciiWhitespace(&line);
  return line;
}

std::string PathOf(const std::string& dir, const std::string& app) {
  return absl::StrCat(dir, "/", app, ".token");
}

// Not a link.
bool IsPlainFile(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error));
}

// A token is "APP_ID.SECRET".
std::string AppId(const std::string& token) { return token.substr(0, token.find('.')); }

absl::Status Failed(const std::string& what, const std::error_code& error) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat(what, ": ", kRemedy));
}

}  // namespace

absl::Status CheckAppName(const std::string& app) {
  const bool good = !app.empty() && app.size() <= kMaxNameBytes &&
                    std::all_of(app.begin(), app.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the app's name is \"", app,
                                                 "\": it must be 1 to ", kMaxNameBytes,
                                                 " of letters, digits, '.', '_' and '-'"));
}

absl::StatusOr<std::string> TokenDir() {
  std::string config = Environment("XDG_CONFIG_HOME");
  if (config.empty()) {
    const std::string home = Environment("HOME");
    if (home.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "there is no directory for tokens: neither XDG_CONFIG_HOME nor HOME is set; ", kRemedy));
    }
    config = home + "/.config";
  }
  return config + "/withy";
}

absl::StatusOr<std::string> ReadToken(const std::string& app) {
  WITHY_RETURN_IF_ERROR(CheckAppName(app));
  WITHY_ASSIGN_OR_RETURN(const std::string dir, TokenDir());
  std::string token = ReadLine(PathOf(dir, app));
  if (!token.empty()) return token;
  return absl::NotFoundError(absl::StrCat("no token of app ", app, " is stored in ", dir,
                                          ": `withyctl apps bind ", app, "` gets one"));
}

std::string ReadDefaultToken() {
  const auto dir = TokenDir();
  return dir.ok() ? ReadLine(*dir + kDefault) : "";
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Create(const std::string& app) {
  WITHY_RETURN_IF_ERROR(CheckAppName(app));
  std::unique_ptr<TokenFile> out(new TokenFile);
  WITHY_ASSIGN_OR_RETURN(out->dir_, TokenDir());
  out->path_ = PathOf(out->dir_, app);
  std::error_code error;
  fs::create_directories(out->dir_, error);
  if (error) return Failed("cannot create " + out->dir_, error);
  std::string fresh = out->path_ + ".XXXXXX";
  out->file_ = UniqueFd(mkostemp(fresh.data(), O_CLOEXEC));
  if (!out->file_.valid()) {
    return Failed("cannot write in " + out->dir_, {errno, std::generic_category()});
  }
  out->fresh_ = fresh;
  return out;
}

absl::Status TokenFile::KeepOther(const std::string& path, const std::string& token) {
  if (!IsPlainFile(path)) return absl::OkStatus();
  const std::string id = AppId(ReadLine(path));
  if (id == AppId(token) || !CheckAppName(id).ok()) return absl::OkStatus();
  std::error_code error;
  fs::rename(path, PathOf(dir_, id), error);
  if (error) return Failed("cannot move " + path + " to " + PathOf(dir_, id), error);
  moved_app_id_ = id;
  return absl::OkStatus();
}

TokenFile::~TokenFile() {
  if (!fresh_.empty()) unlink(fresh_.c_str());
}

absl::Status TokenFile::Save(const std::string& token) {
  const std::string line = token + "\n";
  if (write(file_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      fsync(file_.get()) != 0) {
    return ErrnoError("cannot write " + fresh_);
  }
  WITHY_RETURN_IF_ERROR(KeepOther(path_, token));
  if (std::rename(fresh_.c_str(), path_.c_str()) != 0) return ErrnoError("cannot write " + path_);
  fresh_.clear();
  token_ = token;
  const std::string used = dir_ + kDefault;
  const bool renewed = IsPlainFile(used) && AppId(ReadLine(used)) == AppId(token);
  return renewed ? MakeDefault() : absl::OkStatus();
}

absl::Status TokenFile::MakeDefault() {
  const std::string link = dir_ + kDefault;
  WITHY_RETURN_IF_ERROR(KeepOther(link, token_));
  // Created beside it and renamed, so that the link always exists.
  const std::string fresh = absl::StrCat(link, ".", getpid());
  unlink(fresh.c_str());
  if (symlink(fs::path(path_).filename().c_str(), fresh.c_str()) != 0 ||
      std::rename(fresh.c_str(), link.c_str()) != 0) {
    const absl::Status status = ErrnoError("cannot make " + link + " a link to " + path_);
    unlink(fresh.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace withy::cli
