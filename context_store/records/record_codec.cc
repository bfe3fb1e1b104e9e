#include "context_store/records/record_codec.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace withy::context_store {
namespace {

constexpr size_t kCheckBytes = 8;
// What encrypted payloads are bound to, beside owner and key.
constexpr std::string_view kPurpose = "withy record 2";
constexpr std::string_view kHoldText[] = {kContextPrefix, kSegmentPrefix, kResultPrefix,
                                          kKvIndexPrefix};
constexpr size_t kEnvelopeBytes = 1 + kCheckBytes;

// Appends integers in little-endian order and strings with a 32-bit length.
class Writer {
 public:
  Writer& U32(uint32_t v) { return Little(v, 4); }
  Writer& U64(uint64_t v) { return Little(v, 8); }
  Writer& I64(int64_t v) { return Little(static_cast<uint64_t>(v), 8); }
  Writer& Bytes(std::string_view v) {
    U32(static_cast<uint32_t>(v.size()));
    out_.append(v);
    return *this;
  }
  std::string Take() { return std::move(out_); }

 private:
  Writer& Little(uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(v >> (8 * i)));
    return *this;
  }
  std::string out_;
};

// Reads the output of Writer. After the first field that does not fit, all reads return zeros and
// ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  uint32_t U32() { return static_cast<uint32_t>(Little(4)); }
  bool ok() const { return ok_; }
  bool AtEnd() const { return in_.empty(); }
  uint64_t U64() { return Little(8); }
  int64_t I64() { return static_cast<int64_t>(Little(8)); }
  std::string Bytes() {
    const size_t size = U32();
    return std::string(Take(size));
  }
  absl::Status Done(const char* what) const {
    if (ok_) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(what, " ends too early"));
  }

 private:
  std::string_view Take(size_t size) {
    if (size > in_.size()) ok_ = false;
    if (!ok_) return {};
    std::string_view taken = in_.substr(0, size);
    in_.remove_prefix(size);
    return taken;
  }
  uint64_t Little(size_t bytes) {
    uint64_t v = 0;
    int shift = 0;
    for (char c : Take(bytes)) {
      v |= uint64_t{static_cast<uint8_t>(c)} << shift;
      shift += 8;
    }
    return v;
  }

  std::string_view in_;
  bool ok_ = true;
};

std::string Join(std::string_view prefix, std::string_view a) {
  return absl::StrCat(ToAbsl(prefix), ToAbsl(a));
}

std::string Check(std::string_view key, std::string_view payload) {
  std::string bytes = Writer().Bytes(key).Take();
  bytes.append(payload);
  return Sha256(bytes).substr(0, kCheckBytes);
}

}  // namespace

std::string AppKey(std::string_view app_id) { return Join(kAppPrefix, app_id); }

std::string ContextKey(std::string_view app_id, std::string_view context_id) {
  return absl::StrCat("ctx/", ToAbsl(app_id), "/", ToAbsl(context_id));
}

std::string SegmentPrefix(std::string_view context_id) {
  return absl::StrCat("seg/", ToAbsl(context_id), "/");
}

std::string SegmentKey(std::string_view context_id, uint32_t number) {
  return absl::StrFormat("seg/%s/%010u", ToAbsl(context_id), number);
}

std::string ResultPrefix(std::string_view app_id) {
  return absl::StrCat("res/", ToAbsl(app_id), "/");
}

std::string ResultKey(std::string_view app_id, std::string_view request_id) {
  return Join(ResultPrefix(app_id), request_id);
}

std::string ResultByContextPrefix(std::string_view context_id) {
  return absl::StrCat("rby/", ToAbsl(context_id), "/");
}

std::string ResultByContextKey(std::string_view context_id, std::string_view request_id) {
  return Join(ResultByContextPrefix(context_id), request_id);
}

std::string ResultByTimeKey(int64_t stored_s, std::string_view app_id,
                            std::string_view request_id) {
  return absl::StrFormat("exp/%012d/%s/%s", std::max<int64_t>(stored_s, 0), ToAbsl(app_id),
                         ToAbsl(request_id));
}

std::string DataKeyKey(std::string_view owner) { return Join(kDataKeyPrefix, owner); }

std::string WorkerKey(uint64_t instance) { return absl::StrFormat("wrk/%016x", instance); }

bool ParseContextKey(std::string_view key, std::string_view* app_id, std::string_view* context_id) {
  if (!key.starts_with(kContextPrefix)) return false;
  key.remove_prefix(kContextPrefix.size());
  const size_t slash = key.find('/');
  if (slash == std::string_view::npos) return false;
  *app_id = key.substr(0, slash);
  *context_id = key.substr(slash + 1);
  return !app_id->empty() && !context_id->empty();
}

std::string Encode(const AppRecord& r) {
  return Writer().Bytes(r.name).Bytes(r.token_hash).I64(r.created_unix_s).Take();
}

absl::Status Decode(std::string_view payload, AppRecord* r) {
  Reader in(payload);
  r->name = in.Bytes();
  r->token_hash = in.Bytes();
  r->created_unix_s = in.I64();
  return in.Done("app record");
}

std::string Encode(const ContextRecord& r) {
  Writer writer;
  writer.Bytes(r.title)
      .Bytes(r.create_request_id)
      .I64(r.created_unix_ns)
      .I64(r.last_used_unix_ns)
      .U32(r.segments)
      .U32(r.tokens)
      .U64(r.revision)
      .U32(r.dropped)
      .Bytes(r.system_digest);
  writer.U32(static_cast<uint32_t>(r.unfinished.size()));
  for (const UnfinishedExchange& exchange : r.unfinished) {
    writer.Bytes(exchange.request_id)
        .Bytes(exchange.digest)
        .U32(exchange.where.first)
        .U32(exchange.where.count)
        .I64(exchange.broken_s);
  }
  writer.U64(r.text_bytes).U64(r.total_tokens).U64(r.created_number).U64(r.used_number);
  writer.U32(r.kept_by_service ? 1 : 0);
  return writer.Take();
}

absl::Status Decode(std::string_view payload, ContextRecord* r) {
  Reader in(payload);
  r->title = in.Bytes();
  r->create_request_id = in.Bytes();
  r->created_unix_ns = in.I64();
  r->last_used_unix_ns = in.I64();
  r->segments = in.U32();
  r->tokens = in.U32();
  r->revision = in.U64();
  if (in.AtEnd()) {
    r->total_tokens = r->tokens;
    return in.Done("context record");  // written by a build without the following fields
  }
  r->dropped = in.U32();
  r->system_digest = in.Bytes();
  const uint32_t unfinished = in.U32();
  for (uint32_t i = 0; i < unfinished && in.ok(); ++i) {
    UnfinishedExchange& exchange = r->unfinished.emplace_back();
    exchange.request_id = in.Bytes();
    exchange.digest = in.Bytes();
    exchange.where.first = in.U32();
    exchange.where.count = in.U32();
    exchange.broken_s = in.I64();
  }
  if (in.AtEnd()) {
    r->total_tokens = r->tokens;
    return in.Done("context record");  // likewise
  }
  r->text_bytes = in.U64();
  r->total_tokens = in.U64();
  r->created_number = in.U64();
  r->used_number = in.U64();
  if (in.AtEnd()) return in.Done("context record");  // likewise
  r->kept_by_service = in.U32() == 1;
  return in.Done("context record");
}

std::string Encode(const ResultRecord& r) {
  return Writer().I64(r.stored_s).Bytes(r.context_id).Bytes(r.digest).Bytes(r.result).Take();
}

absl::Status Decode(std::string_view payload, ResultRecord* r) {
  Reader in(payload);
  r->stored_s = in.I64();
  r->context_id = in.Bytes();
  r->digest = in.Bytes();
  r->result = in.Bytes();
  return in.Done("result record");
}

std::string Encode(const ResultIndexRecord& r) {
  return Writer()
      .Bytes(r.app_id)
      .Bytes(r.context_id)
      .Bytes(r.request_id)
      .I64(r.stored_s)
      .U32(r.bytes)
      .Take();
}

absl::Status Decode(std::string_view payload, ResultIndexRecord* r) {
  Reader in(payload);
  r->app_id = in.Bytes();
  r->context_id = in.Bytes();
  r->request_id = in.Bytes();
  r->stored_s = in.I64();
  if (in.AtEnd()) return in.Done("result index record");  // written by a build without the size
  r->bytes = in.U32();
  return in.Done("result index record");
}

std::string Encode(const WorkerRecord& r) {
  return Writer().U64(r.instance).I64(r.pid).U64(r.start_ticks).Take();
}

absl::Status Decode(std::string_view payload, WorkerRecord* r) {
  Reader in(payload);
  r->instance = in.U64();
  r->pid = in.I64();
  r->start_ticks = in.U64();
  return in.Done("worker record");
}

namespace {

std::string Envelope(uint8_t version, std::string_view key, std::string_view payload) {
  std::string value;
  value.reserve(kEnvelopeBytes + payload.size());
  value.push_back(static_cast<char>(version));
  value.append(Check(key, payload));
  value.append(payload);
  return value;
}

absl::Status Damaged(std::string_view key, std::string_view why) {
  return absl::DataLossError(
      absl::StrCat("record ", PrintableKey(key), " is damaged: ", ToAbsl(why)));
}

std::string Associated(std::string_view key, std::string_view owner) {
  return std::string(kPurpose) + Writer().Bytes(owner).Bytes(key).Take();
}

}  // namespace

std::string SealValue(std::string_view key, std::string_view payload) {
  return Envelope(kPlainValue, key, payload);
}

std::string EncryptValue(std::string_view key, std::string_view payload, const DataKey& data_key) {
  std::string encrypted = Writer().Bytes(data_key.owner).Take();
  encrypted += SealBytes(*data_key.key, Associated(key, data_key.owner), payload);
  return Envelope(kEncryptedValue, key, encrypted);
}

absl::StatusOr<StoredValue> ParseValue(std::string_view key, std::string_view value) {
  if (value.size() < kEnvelopeBytes) return Damaged(key, absl::StrCat(value.size(), " bytes"));
  const auto version = static_cast<uint8_t>(value[0]);
  if (version < kPlainValue || version > kEncryptedValue) {
    return absl::UnimplementedError(
        absl::StrCat("record ", PrintableKey(key), " has version ", static_cast<int>(version),
                     ", this build reads up to ", static_cast<int>(kEncryptedValue),
                     ": it was written by a newer withy"));
  }
  const std::string_view payload = value.substr(kEnvelopeBytes);
  if (Check(key, payload) != value.substr(1, kCheckBytes)) {
    return Damaged(key, "its checksum does not match");
  }
  if (version == kPlainValue) return StoredValue{"", payload};
  Reader in(payload);
  const size_t owner_bytes = in.U32();
  constexpr size_t kLengthBytes = 4;
  if (!in.ok() || owner_bytes == 0 || owner_bytes > payload.size() - kLengthBytes) {
    return Damaged(key, "it does not name its data key");
  }
  return StoredValue{payload.substr(kLengthBytes, owner_bytes),
                     payload.substr(kLengthBytes + owner_bytes)};
}

absl::StatusOr<std::string> DecryptValue(std::string_view key, const StoredValue& value,
                                         const SecretKey& data_key) {
  auto payload = OpenBytes(data_key, Associated(key, value.owner), value.payload);
  if (!payload.ok()) return Annotate(payload.status(), absl::StrCat("record ", PrintableKey(key)));
  return payload;
}

absl::StatusOr<std::string> OpenValue(std::string_view key, std::string_view value) {
  WITHY_ASSIGN_OR_RETURN(const StoredValue stored, ParseValue(key, value));
  if (!stored.owner.empty())
    return Damaged(key, "it is encrypted, which records of its kind are not");
  return std::string(stored.payload);
}

bool HoldsText(std::string_view key) {
  return std::any_of(std::begin(kHoldText), std::end(kHoldText),
                     [key](std::string_view prefix) { return key.starts_with(prefix); });
}

std::string Sha256(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

bool EqualConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string PrintableKey(std::string_view key) {
  return absl::StrCat("\"", absl::CHexEscape(ToAbsl(key)), "\"");
}

}  // namespace withy::context_store
