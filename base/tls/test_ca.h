// A certification authority for tests, made anew each time. Nothing of it is for use outside of
// tests.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

typedef struct evp_pkey_st EVP_PKEY;  // OpenSSL's
typedef struct x509_st X509;

namespace withy {

// Content of PEM files.
struct TestCertificate {
  std::string certificate_pem;
  std::string key_pem;
};

struct TestSubject {
  std::string common_name = {};                 // "": none
  std::string dns_name = {};                    // "": none
  absl::Duration valid_from = -absl::Hours(1);  // from now
  absl::Duration valid_for = absl::Hours(24);   // from now; negative: it has expired
};

class TestCa {
 public:
  TestCa();
  ~TestCa();
  TestCa(const TestCa&) = delete;
  TestCa& operator=(const TestCa&) = delete;

  const std::string& pem() const { return pem_; }
  // Of a server at 127.0.0.1 and localhost, or of a client.
  TestCertificate Issue(const TestSubject& subject) const;

 private:
  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key_;
  std::unique_ptr<X509, void (*)(X509*)> certificate_;
  std::string pem_;
};

// Files of a server in a directory of its own, which goes with it.
class TestTlsFiles {
 public:
  TestTlsFiles();
  ~TestTlsFiles();
  TestTlsFiles(const TestTlsFiles&) = delete;
  TestTlsFiles& operator=(const TestTlsFiles&) = delete;

  // Replaces the files, each at once.
  void Put(const TestCertificate& server) const;
  // Writes a file of mode 0600 and returns its path.
  std::string Write(const std::string& name, const std::string& content) const;
  std::string certificate() const { return directory_ + "/server.pem"; }
  std::string key() const { return directory_ + "/server.key"; }

 private:
  std::string directory_;
};

}  // namespace withy
