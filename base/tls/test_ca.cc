#include "base/tls/test_ca.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace withy {
namespace {

using MadeKey = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
using MadeCertificate = std::unique_ptr<X509, void (*)(X509*)>;

MadeKey NewKey() { return {EVP_EC_gen("P-256"), EVP_PKEY_free}; }

template <typename Write>
std::string Pem(const Write& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  write(bio.get());
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(bytes));
}

void AddExtension(X509* to, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  X509_add_ext(to, extension, -1);
  X509_EXTENSION_free(extension);
}

// Not signed yet.
MadeCertificate NewCertificate(EVP_PKEY* key, const TestSubject& subject) {
  MadeCertificate made(X509_new(), X509_free);
  X509_set_version(made.get(), 2);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial & 0x7fffffff);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), absl::ToInt64Seconds(subject.valid_from));
  X509_gmtime_adj(X509_getm_notAfter(made.get()), absl::ToInt64Seconds(subject.valid_for));
  X509_set_pubkey(made.get(), key);
  X509_NAME* name = X509_get_subject_name(made.get());
  const auto add = [name](const char* field, const std::string& value) {
    X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(value.c_str()), -1, -1, 0);
  };
  add("O", "withy tests");
  if (!subject.common_name.empty()) add("CN", subject.common_name);
  return made;
}

std::string PemOf(X509* certificate) {
  return Pem([&](BIO* to) { PEM_write_bio_X509(to, certificate); });
}

}  // namespace

TestCa::TestCa() : key_(NewKey()), certificate_(nullptr, X509_free) {
  certificate_ = NewCertificate(key_.get(), {.common_name = "a CA for tests"});
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  X509_sign(certificate_.get(), key_.get(), EVP_sha256());
  pem_ = PemOf(certificate_.get());
}

TestCa::~TestCa() = default;

TestCertificate TestCa::Issue(const TestSubject& subject) const {
  const MadeKey key = NewKey();
  const MadeCertificate made = NewCertificate(key.get(), subject);
  X509_set_issuer_name(made.get(), X509_get_subject_name(certificate_.get()));
  const std::string names = subject.dns_name.empty()
                                ? "IP:127.0.0.1"
                                : absl::StrCat("IP:127.0.0.1,DNS:", subject.dns_name);
  AddExtension(made.get(), certificate_.get(), NID_subject_alt_name, names);
  X509_sign(made.get(), key_.get(), EVP_sha256());
  return {.certificate_pem = PemOf(made.get()),
          .key_pem = Pem([&](BIO* to) {
            PEM_write_bio_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

TestTlsFiles::TestTlsFiles() {
  char pattern[] = "/tmp/withy-tls-XXXXXX";
  directory_ = mkdtemp(pattern);
}

TestTlsFiles::~TestTlsFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void TestTlsFiles::Put(const TestCertificate& server) const {
  std::rename(Write("new.pem", server.certificate_pem).c_str(), certificate().c_str());
  std::rename(Write("new.key", server.key_pem).c_str(), key().c_str());
}

std::string TestTlsFiles::Write(const std::string& name, const std::string& content) const {
  const std::string path = absl::StrCat(directory_, "/", name);
  std::ofstream(path, std::ios::binary) << content;
  chmod(path.c_str(), 0600);
  return path;
}

}  // namespace withy
