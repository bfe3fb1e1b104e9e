#include "http/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::http {
namespace {

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using MemoryBio = std::unique_ptr<BIO, decltype(&BIO_free)>;

absl::Status OpenSslError(const char* what) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof text);
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("TLS: ", what, ": ", text));
}

// OpenSSL's own sockets would raise SIGPIPE where a client has gone.
int WriteToSocket(BIO* bio, const char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent =
      send(BIO_get_fd(bio, nullptr), bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_retry_write(bio);
  }
  return static_cast<int>(sent);
}

// OpenSSL's socket, but for the writing. Made once; OpenSSL has no end of it.
const BIO_METHOD* QuietSocket() {
  static const BIO_METHOD* const method = [] {
    const BIO_METHOD* usual = BIO_s_socket();
    BIO_METHOD* made = BIO_meth_new(BIO_TYPE_SOCKET, "socket without SIGPIPE");
    BIO_meth_set_write(made, WriteToSocket);
    BIO_meth_set_read(made, BIO_meth_get_read(usual));
    BIO_meth_set_ctrl(made, BIO_meth_get_ctrl(usual));
    BIO_meth_set_create(made, BIO_meth_get_create(usual));
    BIO_meth_set_destroy(made, BIO_meth_get_destroy(usual));
    return made;
  }();
  return method;
}

MemoryBio Reading(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free};
}

absl::Status UseCertificates(const TlsMaterial& material, SSL_CTX* context) {
  const MemoryBio chain = Reading(material.certificate_pem);
  bool first = true;
  while (X509* one = PEM_read_bio_X509_AUX(chain.get(), nullptr, nullptr, nullptr)) {
    const bool used = first ? SSL_CTX_use_certificate(context, one) == 1
                            : SSL_CTX_add1_chain_cert(context, one) == 1;
    X509_free(one);
    if (!used) return OpenSslError("a certificate is refused");
    first = false;
  }
  ERR_clear_error();  // the end of the text
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      PEM_read_bio_PrivateKey(Reading(material.key_pem).get(), nullptr, nullptr, nullptr),
      EVP_PKEY_free);
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return OpenSslError("the private key is refused");
  }
  return absl::OkStatus();
}

absl::Status AskForCertificates(const TlsMaterial& material, SSL_CTX* context) {
  const MemoryBio cas = Reading(material.client_ca_pem);
  while (X509* one = PEM_read_bio_X509_AUX(cas.get(), nullptr, nullptr, nullptr)) {
    const bool used = X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one) == 1 &&
                      SSL_CTX_add_client_CA(context, one) == 1;
    X509_free(one);
    if (!used) return OpenSslError("a CA of clients is refused");
  }
  ERR_clear_error();
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

}  // namespace

TlsAcceptor::TlsAcceptor(std::shared_ptr<TlsSource> source) : source_(std::move(source)) {}

TlsAcceptor::~TlsAcceptor() { SSL_CTX_free(context_); }

absl::Status TlsAcceptor::Renew(const std::shared_ptr<const TlsMaterial>& material) {
  constexpr unsigned char kSessions[] = "withy";
  Context made(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (made == nullptr || SSL_CTX_set_min_proto_version(made.get(), TLS1_2_VERSION) != 1) {
    return OpenSslError("no context");
  }
  SSL_CTX_set_options(made.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(made.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                   SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_id_context(made.get(), kSessions, sizeof kSessions - 1);
  WITHY_RETURN_IF_ERROR(UseCertificates(*material, made.get()));
  if (!material->client_ca_pem.empty()) {
    WITHY_RETURN_IF_ERROR(AskForCertificates(*material, made.get()));
  }
  SSL_CTX_free(context_);
  context_ = made.release();
  material_ = material;
  return absl::OkStatus();
}

absl::StatusOr<Socket> TlsAcceptor::Begin(UniqueFd fd) {
  const std::shared_ptr<const TlsMaterial> material = source_->Current();
  std::unique_ptr<SSL, SslFree> ssl;
  {
    absl::MutexLock lock(&mutex_);
    if (material != material_) WITHY_RETURN_IF_ERROR(Renew(material));
    ssl.reset(SSL_new(context_));
  }
  BIO* const bio = ssl == nullptr ? nullptr : BIO_new(QuietSocket());
  if (bio == nullptr) return OpenSslError("no connection");
  BIO_set_fd(bio, fd.get(), BIO_NOCLOSE);
  SSL_set_bio(ssl.get(), bio, bio);
  SSL_set_accept_state(ssl.get());
  return Socket(std::move(fd), std::move(ssl));
}

}  // namespace withy::http
