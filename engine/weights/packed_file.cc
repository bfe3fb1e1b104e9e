#include "engine/weights/packed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/keep_in_memory.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace withy::engine {
namespace {

constexpr size_t kReadBytes = size_t{8} << 20;

constexpr uint64_t kSampleBlocks = 32;

bool Inside(const PackedSection& section, uint64_t file_bytes) {
  return section.offset <= file_bytes && section.bytes <= file_bytes - section.offset;
}

absl::Status DamagedFile(const std::string& path, std::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, ": packed file is damaged: ", ToAbsl(what),
                   "; a worker packs it again where model.path names its GGUF, and withyctl models "
                   "import GGUF makes it anywhere"));
}

// Checks magic, version and the trailer's own checksum. `bytes` hold at least a trailer.
absl::StatusOr<PackedTrailer> ParseTrailer(const std::string& path,
                                           std::span<const std::byte> bytes) {
  PackedTrailer trailer;
  std::memcpy(&trailer, bytes.data(), sizeof(trailer));
  if (trailer.magic != kPackedMagic) return DamagedFile(path, "its end is missing");
  PackedTrailer zeroed = trailer;
  zeroed.trailer_crc = 0;
  if (Crc32c(0, std::as_bytes(std::span(&zeroed, 1))) != trailer.trailer_crc) {
    return DamagedFile(path, "the trailer's checksum does not match");
  }
  if (trailer.version != kPackedVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": packed file has version ", trailer.version, ", this program reads version ",
        kPackedVersion, ": name its GGUF in model.path, or pack that with withyctl models import"));
  }
  return trailer;
}

absl::StatusOr<UniqueFd> OpenPacked(const std::string& path) {
  // Non-blocking, so that a pipe is refused instead of waited for.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return ErrnoError(absl::StrCat("open ", path));
  return file;
}

absl::StatusOr<uint64_t> SizeOf(int fd, const std::string& path) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return ErrnoError(absl::StrCat("stat ", path));
  if (!S_ISREG(status.st_mode)) return DamagedFile(path, "it is not a regular file");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size < kPackedPage) return DamagedFile(path, "it is shorter than a trailer");
  return size;
}

absl::StatusOr<PackedTrailer> ReadTrailer(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const UniqueFd file, OpenPacked(path));
  std::array<std::byte, sizeof(PackedTrailer)> bytes{};
  WITHY_ASSIGN_OR_RETURN(const uint64_t size, SizeOf(file.get(), path));
  WITHY_RETURN_IF_ERROR(ReadPacked(file.get(), path, size - kPackedPage, bytes));
  return ParseTrailer(path, bytes);
}

}  // namespace

absl::Status ReadPacked(int fd, const std::string& path, uint64_t offset,
                        std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = pread(fd, out.data() + done, std::min(kReadBytes, out.size() - done),
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return DamagedFile(path, absl::StrCat("it cannot be read at byte ", offset + done, ": ",
                                            std::strerror(errno)));
    }
    if (got == 0) return DamagedFile(path, absl::StrCat("it ends at byte ", offset + done));
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

bool PackedFile::LooksPacked(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 8> magic{};
  return file.get() >= 0 && pread(file.get(), magic.data(), magic.size(), 0) == 8 &&
         magic == kPackedMagic;
}

absl::StatusOr<SourceIdentity> PackedFile::ReadSource(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(PackedTrailer trailer, ReadTrailer(path));
  return trailer.source;
}

absl::StatusOr<std::unique_ptr<PackedFile>> PackedFile::Open(const std::string& path,
                                                             Verify verify) {
  std::unique_ptr<PackedFile> file(new PackedFile());
  file->path_ = path;
  WITHY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenPacked(path));
  WITHY_RETURN_IF_ERROR(file->Map(fd.get()));
  WITHY_RETURN_IF_ERROR(file->ReadSections(fd.get()));
  WITHY_RETURN_IF_ERROR(file->ReadTable());
  WITHY_RETURN_IF_ERROR(file->CheckData(fd.get(), verify));
  return file;
}

PackedFile::~PackedFile() {
  metadata_.reset();
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

absl::Status PackedFile::Damaged(std::string_view what) const { return DamagedFile(path_, what); }

absl::Status PackedFile::Map(int fd) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t size, SizeOf(fd, path_));
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) return ErrnoError(absl::StrCat("map ", path_));
  bytes_ = {static_cast<const std::byte*>(mapping), size};
  return absl::OkStatus();
}

// Nothing but the weights is read through the mapping: a page that the disk does not give is an
// error here, and would be a signal there.
absl::Status PackedFile::ReadSections(int fd) {
  std::array<std::byte, sizeof(PackedTrailer)> end{};
  WITHY_RETURN_IF_ERROR(ReadPacked(fd, path_, bytes_.size() - kPackedPage, end));
  WITHY_ASSIGN_OR_RETURN(trailer_, ParseTrailer(path_, end));
  if (trailer_.file_bytes != bytes_.size()) {
    return Damaged(
        absl::StrCat("it has ", bytes_.size(), " bytes and should have ", trailer_.file_bytes));
  }
  for (const PackedSection* section :
       {&trailer_.table, &trailer_.metadata, &trailer_.checksums, &trailer_.data}) {
    if (!Inside(*section, bytes_.size())) return Damaged("a section lies outside the file");
  }
  const uint64_t blocks = (trailer_.data.bytes + kPackedChecksumBlock - 1) / kPackedChecksumBlock;
  if (trailer_.data.offset % kPackedPage != 0 || trailer_.table.offset % 64 != 0 ||
      trailer_.checksums.offset % 64 != 0 || trailer_.checksums.bytes != blocks * 4 ||
      trailer_.table.bytes % sizeof(PackedEntry) != 0 ||
      trailer_.table.bytes / sizeof(PackedEntry) > kPackedMaxTensors ||
      trailer_.metadata.bytes > kPackedMaxMetadataBytes) {
    return Damaged("a section has an impossible size or place");
  }
  WITHY_RETURN_IF_ERROR(ReadSection(fd, "table", trailer_.table, trailer_.table_crc, &table_));
  WITHY_RETURN_IF_ERROR(
      ReadSection(fd, "metadata", trailer_.metadata, trailer_.metadata_crc, &metadata_bytes_));
  WITHY_RETURN_IF_ERROR(
      ReadSection(fd, "checksums", trailer_.checksums, trailer_.checksums_crc, &checksums_));
  auto parsed = GgufFile::FromBytes(
      {reinterpret_cast<const uint8_t*>(metadata_bytes_.data()), metadata_bytes_.size()}, path_);
  if (!parsed.ok()) return Damaged(absl::StrCat("its metadata: ", parsed.status().message()));
  metadata_ = std::make_unique<GgufFile>(*std::move(parsed));
  return absl::OkStatus();
}

absl::Status PackedFile::ReadSection(int fd, std::string_view name, const PackedSection& section,
                                     uint32_t crc, std::vector<std::byte>* bytes) const {
  bytes->resize(section.bytes);
  WITHY_RETURN_IF_ERROR(ReadPacked(fd, path_, section.offset, *bytes));
  if (Crc32c(0, *bytes) == crc) return absl::OkStatus();
  return Damaged(absl::StrCat("the checksum of its ", ToAbsl(name), " (", section.bytes,
                              " bytes at byte ", section.offset, ") does not match"));
}

absl::Status PackedFile::ReadTable() {
  const size_t count = table_.size() / sizeof(PackedEntry);
  tensors_.reserve(count);  // index_ refers to the names, which must not move
  for (size_t i = 0; i < count; ++i) {
    PackedEntry entry;
    std::memcpy(&entry, table_.data() + i * sizeof(PackedEntry), sizeof(entry));
    WITHY_RETURN_IF_ERROR(AddTensor(entry));
  }
  for (size_t i = 0; i < count; ++i) {
    if (!index_.emplace(tensors_[i].name, i).second) {
      return Damaged(absl::StrCat("tensor ", tensors_[i].name, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status PackedFile::AddTensor(const PackedEntry& entry) {
  PackedTensor tensor;
  tensor.name.assign(entry.name.data(), strnlen(entry.name.data(), entry.name.size()));
  const auto damaged = [&](std::string_view what) {
    return Damaged(absl::StrCat("tensor ", tensor.name, ": ", ToAbsl(what)));
  };
  if (!Inside({entry.offset, entry.bytes}, trailer_.data.bytes)) {
    return damaged("lies outside the data");
  }
  constexpr uint32_t kMaxDimension = 1u << 30;
  if (entry.n_out < 1 || entry.n_out > kMaxDimension || entry.n_in < 1 ||
      entry.n_in > kMaxDimension) {
    return damaged("impossible shape");
  }
  const std::byte* data = bytes_.data() + trailer_.data.offset + entry.offset;
  tensor.kind = entry.kind;
  tensor.bytes = entry.bytes;
  tensor.file_offset = trailer_.data.offset + entry.offset;
  if (entry.kind == PackedKind::kVector) {
    if (entry.offset % 64 != 0 || entry.bytes != uint64_t{entry.n_in} * sizeof(float)) {
      return damaged("impossible size or place");
    }
    tensor.values = {reinterpret_cast<const float*>(data), entry.n_in};
  } else if (entry.kind == PackedKind::kMatrix) {
    if (entry.type > static_cast<uint32_t>(kLastWeightType)) return damaged("unknown type");
    if (entry.panel_inputs < kQuantBlock || entry.panel_inputs % kQuantBlock != 0 ||
        entry.panel_inputs > kMaxDimension || entry.n_in % kQuantBlock != 0 ||
        uint64_t{entry.n_in} * entry.n_out > uint64_t{1} << 40) {
      return damaged("impossible shape");
    }
    tensor.matrix = {.type = static_cast<WeightType>(entry.type),
                     .n_out = static_cast<int>(entry.n_out),
                     .n_in = static_cast<int>(entry.n_in),
                     .panel_inputs = static_cast<int>(entry.panel_inputs),
                     .data = data};
    if (entry.offset % kPackedPage != 0 || PackedBytes(tensor.matrix) != entry.bytes) {
      return damaged("impossible size or place");
    }
  } else if (entry.kind == PackedKind::kLowRank) {
    constexpr uint32_t kMaxRank = 1024;
    if (entry.n_out % kQuantBlock != 0 || entry.n_in > kMaxRank) return damaged("impossible shape");
    tensor.low_rank = {.rank = static_cast<int>(entry.n_in),
                       .outputs = static_cast<int>(entry.n_out),
                       .data = data};
    if (entry.offset % 64 != 0 ||
        LowRankBytes(tensor.low_rank.rank, tensor.low_rank.outputs) != entry.bytes) {
      return damaged("impossible size or place");
    }
  } else {
    return damaged("unknown kind");
  }
  tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status PackedFile::ReadData(HugeMemory* memory) const {
  WITHY_ASSIGN_OR_RETURN(const UniqueFd file, OpenPacked(path_));
  const auto begin = static_cast<off_t>(trailer_.data.offset);
  const auto size = static_cast<off_t>(trailer_.data.bytes);
  posix_fadvise(file.get(), begin, size, POSIX_FADV_SEQUENTIAL);
  WITHY_RETURN_IF_ERROR(ReadPacked(file.get(), path_, trailer_.data.offset, memory->bytes()));
  posix_fadvise(file.get(), begin, size, POSIX_FADV_DONTNEED);
  WITHY_RETURN_IF_ERROR(CheckBlocks(0, memory->bytes()));
  return memory->Seal();
}

bool PackedFile::Rest() {
  rests_ = true;
  if (in_memory()) return rests_ = memory_.GiveBack().ok();
  const std::byte* const data = bytes_.data() + trailer_.data.offset;
  munlock(data, trailer_.data.bytes);
  ForgetData();
  if (KeptInMemory()) (void)mlock2(data, trailer_.data.bytes, MLOCK_ONFAULT);
  return true;
}

absl::Status PackedFile::Wake() {
  if (!rests_) return absl::OkStatus();
  if (in_memory()) {
    WITHY_RETURN_IF_ERROR(ReadData(&memory_));
    if (KeptInMemory()) memory_.Lock();
  } else {
    // Linux 5.14 and later; before that a pass waits for its pages.
    std::byte* const data = const_cast<std::byte*>(bytes_.data()) + trailer_.data.offset;
    madvise(data, trailer_.data.bytes, MADV_POPULATE_READ);
  }
  rests_ = false;
  return absl::OkStatus();
}

absl::Status PackedFile::MoveToMemory() {
  WITHY_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(trailer_.data.bytes));
  WITHY_RETURN_IF_ERROR(ReadData(&memory));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    MoveTensor(i, memory.bytes().data() + (tensors_[i].file_offset - trailer_.data.offset));
  }
  memory_ = std::move(memory);
  return absl::OkStatus();
}

void PackedFile::MoveTensor(size_t index, const std::byte* data) {
  PackedTensor& tensor = tensors_[index];
  if (tensor.kind == PackedKind::kMatrix) tensor.matrix.data = data;
  if (tensor.kind == PackedKind::kLowRank) tensor.low_rank.data = data;
  if (tensor.kind == PackedKind::kVector) {
    tensor.values = {reinterpret_cast<const float*>(data), tensor.values.size()};
  }
}

void PackedFile::ForgetData() const {
  std::byte* const data = const_cast<std::byte*>(bytes_.data()) + trailer_.data.offset;
  madvise(data, trailer_.data.bytes, MADV_DONTNEED);
  const UniqueFd file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return;
  posix_fadvise(file.get(), static_cast<off_t>(trailer_.data.offset),
                static_cast<off_t>(trailer_.data.bytes), POSIX_FADV_DONTNEED);
}

absl::Status PackedFile::CheckBlocks(uint64_t begin, std::span<const std::byte> bytes) const {
  for (uint64_t at = 0; at < bytes.size(); at += kPackedChecksumBlock) {
    const uint64_t size = std::min<uint64_t>(kPackedChecksumBlock, bytes.size() - at);
    WITHY_RETURN_IF_ERROR(CheckBlock((begin + at) / kPackedChecksumBlock, bytes.subspan(at, size)));
  }
  return absl::OkStatus();
}

absl::Status PackedFile::CheckData(int fd, Verify verify) const {
  if (verify == Verify::kHead) return absl::OkStatus();
  const uint64_t blocks = checksums_.size() / 4;
  const uint64_t step = verify == Verify::kFull ? 1 : std::max<uint64_t>(1, blocks / kSampleBlocks);
  std::vector<std::byte> buffer(kPackedChecksumBlock);
  for (uint64_t block = 0; block < blocks; block += step) {
    const uint64_t begin = block * kPackedChecksumBlock;
    const auto bytes =
        std::span(buffer).first(std::min(kPackedChecksumBlock, trailer_.data.bytes - begin));
    WITHY_RETURN_IF_ERROR(ReadPacked(fd, path_, trailer_.data.offset + begin, bytes));
    WITHY_RETURN_IF_ERROR(CheckBlock(block, bytes));
  }
  return absl::OkStatus();
}

absl::Status PackedFile::CheckBlock(uint64_t block, std::span<const std::byte> bytes) const {
  uint32_t expected = 0;
  std::memcpy(&expected, checksums_.data() + block * 4, 4);
  if (Crc32c(0, bytes) == expected) return absl::OkStatus();
  const uint64_t begin = trailer_.data.offset + block * kPackedChecksumBlock;
  const auto holds = [&](const PackedTensor& tensor) {
    return tensor.file_offset < begin + bytes.size() && begin < tensor.file_offset + tensor.bytes;
  };
  const auto tensor = std::find_if(tensors_.begin(), tensors_.end(), holds);
  return Damaged(absl::StrCat("the checksum of its data at byte ", begin,
                              tensor == tensors_.end() ? "" : " (of tensor ",
                              tensor == tensors_.end() ? "" : tensor->name,
                              tensor == tensors_.end() ? "" : ")", " does not match"));
}

const PackedTensor* PackedFile::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::string PackedFile::model_id() const {
  return absl::StrFormat("%016x%016x", trailer_.model_id[0], trailer_.model_id[1]);
}

}  // namespace withy::engine
