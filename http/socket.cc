#include "http/socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <utility>

namespace withy::http {

void SslFree::operator()(SSL* ssl) const { SSL_free(ssl); }

ssize_t Socket::Receive(char* to, size_t bytes) {
  if (ssl_ == nullptr) return recv(fd_.get(), to, bytes, 0);
  ERR_clear_error();
  return SslResult(SSL_read(ssl_.get(), to, static_cast<int>(std::min<size_t>(bytes, INT_MAX))));
}

ssize_t Socket::Send(std::string_view bytes) {
  if (ssl_ == nullptr) return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (bytes.empty()) return 0;
  ERR_clear_error();
  return SslResult(SSL_write(ssl_.get(), bytes.data(),
                             static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
}

ssize_t Socket::SslResult(int result) {
  ssl_wants_ = 0;
  if (result > 0) return result;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_WANT_READ:
      ssl_wants_ = POLLIN;
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_WANT_WRITE:
      ssl_wants_ = POLLOUT;
      errno = EAGAIN;
      return -1;
    default:  // a failed handshake, a broken connection
      ERR_clear_error();
      errno = EPROTO;
      return -1;
  }
}

void Socket::EndSending() {
  if (ssl_ != nullptr && SSL_is_init_finished(ssl_.get()) == 1) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  ssl_wants_ = 0;
  shutdown(fd_.get(), SHUT_WR);
}

ssize_t Socket::Discard() {
  std::array<char, 65536> ignored;
  return recv(fd_.get(), ignored.data(), ignored.size(), 0);
}

std::string Socket::CertifiedName() const {
  if (ssl_ == nullptr) return "";
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      SSL_get1_peer_certificate(ssl_.get()), X509_free);
  if (certificate == nullptr) return "";
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  const auto text = [](const ASN1_STRING* of) {
    return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(of)),
                       static_cast<size_t>(ASN1_STRING_length(of)));
  };
  if (at >= 0) return text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) return text(name->d.dNSName);
  }
  return "";
}

}  // namespace withy::http
