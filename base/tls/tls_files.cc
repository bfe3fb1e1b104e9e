#include "base/tls/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/listen_address.h"
#include "base/status.h"

namespace withy {
namespace {

constexpr size_t kMostBytes = 1 << 20;  // of a file
constexpr absl::Duration kLook = absl::Seconds(2);

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using PrivateKey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Over(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free};
}

// OpenSSL would ask the terminal.
int NoPassphrase(char* /*to*/, int /*bytes*/, int /*writes*/, void* /*unused*/) { return 0; }

absl::Status Unusable(std::string_view field, const std::string& path, std::string_view why) {
  ERR_clear_error();
  return absl::FailedPreconditionError(absl::StrCat(ToAbsl(field), " ", path, ": ", ToAbsl(why)));
}

absl::StatusOr<std::string> ReadPem(std::string_view field, const std::string& path) {
  absl::StatusOr<std::string> pem = ReadRegularFile(path, kMostBytes);
  if (!pem.ok()) return Annotate(pem.status(), field);
  return pem;
}

// A key of root may be readable for a group, as Debian's ssl-cert has them.
absl::Status CheckKeyMode(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoError("tls.key_file: stat " + path);
  const mode_t forbidden = info.st_uid == 0 ? S_IRWXO | S_IWGRP : S_IRWXO | S_IRWXG;
  if ((info.st_mode & forbidden) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "tls.key_file ", path, " has mode ", absl::Hex(info.st_mode >> 6 & 7),
      absl::Hex(info.st_mode >> 3 & 7), absl::Hex(info.st_mode & 7),
      ", so others can use the key: chmod ", info.st_uid == 0 ? "640" : "600", " ", path));
}

absl::StatusOr<absl::Time> TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InvalidArgumentError("a damaged date");
  return absl::FromTimeT(timegm(&parts));
}

std::string Day(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

// When it expires.
absl::StatusOr<absl::Time> CheckValidity(const X509& certificate, const std::string& path,
                                         absl::Time now) {
  WITHY_ASSIGN_OR_RETURN(const absl::Time begins, TimeOf(X509_get0_notBefore(&certificate)));
  WITHY_ASSIGN_OR_RETURN(const absl::Time expires, TimeOf(X509_get0_notAfter(&certificate)));
  if (now > expires) {
    return Unusable(
        "tls.certificate_file", path,
        absl::StrCat("the certificate expired on ", Day(expires),
                     ": put a new one there, or set the board's clock, which has ", Day(now)));
  }
  if (now < begins) {
    return Unusable("tls.certificate_file", path,
                    absl::StrCat("the certificate is valid from ", Day(begins),
                                 " on: set the board's clock, which has ", Day(now)));
  }
  return expires;
}

absl::Status CheckCertificates(std::string_view field, const std::string& path,
                               const std::string& pem) {
  const Bio bio = Over(pem);
  int certificates = 0;
  while (const Certificate one{PEM_read_bio_X509_AUX(bio.get(), nullptr, NoPassphrase, nullptr),
                               X509_free}) {
    ++certificates;
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (certificates > 0 && at_end) {
    ERR_clear_error();
    return absl::OkStatus();
  }
  return Unusable(field, path,
                  certificates == 0 ? "no certificate in PEM is in it"
                                    : absl::StrCat("what follows certificate ", certificates,
                                                   " in it is no certificate"));
}

// The files' identities, sizes and times.
std::string SignsOf(const TlsFiles& files) {
  std::string signs;
  for (const std::string& path : {files.certificate, files.key, files.client_ca}) {
    struct stat info {};
    if (path.empty() || stat(path.c_str(), &info) != 0) {
      signs += "-;";
      continue;
    }
    absl::StrAppend(&signs, info.st_dev, " ", info.st_ino, " ", info.st_size, " ", info.st_mode,
                    " ");
    absl::StrAppend(&signs, info.st_uid, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec, " ",
                    info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec, ";");
  }
  return signs;
}

}  // namespace

absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files, absl::Time now) {
  TlsMaterial material;
  WITHY_ASSIGN_OR_RETURN(material.certificate_pem,
                         ReadPem("tls.certificate_file", files.certificate));
  WITHY_RETURN_IF_ERROR(
      CheckCertificates("tls.certificate_file", files.certificate, material.certificate_pem));
  const Certificate certificate(
      PEM_read_bio_X509_AUX(Over(material.certificate_pem).get(), nullptr, NoPassphrase, nullptr),
      X509_free);
  WITHY_RETURN_IF_ERROR(CheckKeyMode(files.key));
  WITHY_ASSIGN_OR_RETURN(material.key_pem, ReadPem("tls.key_file", files.key));
  const PrivateKey key(
      PEM_read_bio_PrivateKey(Over(material.key_pem).get(), nullptr, NoPassphrase, nullptr),
      EVP_PKEY_free);
  if (key == nullptr) {
    return Unusable("tls.key_file", files.key,
                    "no private key in PEM without a passphrase is in it");
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Unusable(
        "tls.key_file", files.key,
        absl::StrCat("it is not the key of the first certificate in ", files.certificate));
  }
  if (!files.client_ca.empty()) {
    WITHY_ASSIGN_OR_RETURN(material.client_ca_pem, ReadPem("tls.client_ca_file", files.client_ca));
    WITHY_RETURN_IF_ERROR(
        CheckCertificates("tls.client_ca_file", files.client_ca, material.client_ca_pem));
  }
  WITHY_ASSIGN_OR_RETURN(material.expires, CheckValidity(*certificate, files.certificate, now));
  return material;
}

TlsSource::TlsSource(TlsFiles files, OnChange on_change)
    : files_(std::move(files)), on_change_(std::move(on_change)) {}

absl::StatusOr<std::unique_ptr<TlsSource>> TlsSource::Open(TlsFiles files, OnChange on_change) {
  std::unique_ptr<TlsSource> self(new TlsSource(std::move(files), std::move(on_change)));
  WITHY_RETURN_IF_ERROR(self->Look());
  self->thread_ = std::thread([raw = self.get()] {
    while (!raw->stop_.WaitForNotificationWithTimeout(kLook)) raw->Look().IgnoreError();
  });
  return self;
}

TlsSource::~TlsSource() {
  stop_.Notify();
  if (thread_.joinable()) thread_.join();
}

// Reads the files if they have changed, or could not be used. Files are often replaced one after
// the other: what does not belong together yet is read again.
absl::Status TlsSource::Look() {
  absl::MutexLock look(&look_mutex_);
  const absl::Time now = absl::Now();
  const std::string signs = SignsOf(files_);
  const bool changed = std::exchange(seen_, signs) != signs;
  if (changed || !told_.empty()) {
    const absl::Status read = ReadAll(now);
    Tell(read);
    return read;
  }
  absl::Time expires;
  {
    absl::MutexLock lock(&mutex_);
    expires = material_->expires;
  }
  if (now > expires) {
    Tell(Unusable(
        "tls.certificate_file", files_.certificate,
        absl::StrCat("the certificate expired on ", Day(expires), ": put a new one there")));
  }
  return absl::OkStatus();
}

absl::Status TlsSource::ReadAll(absl::Time now) {
  WITHY_ASSIGN_OR_RETURN(TlsMaterial read, ReadTlsFiles(files_, now));
  absl::MutexLock lock(&mutex_);
  material_ = std::make_shared<const TlsMaterial>(std::move(read));
  return absl::OkStatus();
}

void TlsSource::Tell(const absl::Status& problem) {
  const std::string text(problem.message());
  if (std::exchange(told_, text) == text && !text.empty()) return;
  absl::Time expires = absl::InfinitePast();
  {
    absl::MutexLock lock(&mutex_);
    if (material_ != nullptr) expires = material_->expires;
  }
  if (on_change_) on_change_(problem, expires);
}

std::shared_ptr<const TlsMaterial> TlsSource::Current() {
  Look().IgnoreError();
  absl::MutexLock lock(&mutex_);
  return material_;
}

bool TcpTls::Covers(std::string_view listen_address) const {
  return source != nullptr && !listen_address.starts_with(kUnixPrefix) &&
         (on_loopback || !IsLoopback(listen_address));
}

}  // namespace withy
