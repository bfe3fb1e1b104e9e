#include "engine/weights/packed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace withy::engine {
namespace {

constexpr size_t kReadBytes = size_t{8} << 20;

// Fills `out` with the file's bytes from `offset` on, and tells the system that it need not keep
// the file's pages.
absl::Status ReadWeights(int fd, uint64_t offset, std::span<std::byte> out) {
  posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(out.size()),
                POSIX_FADV_SEQUENTIAL);
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = pread(fd, out.data() + done, std::min(kReadBytes, out.size() - done),
                              static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read weights");
    }
    if (got == 0) return absl::DataLossError("weights end before their last byte");
    done += static_cast<size_t>(got);
  }
  posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(out.size()),
                POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

constexpr uint64_t kSampleBlocks = 32;

bool Inside(const PackedSection& section, uint64_t file_bytes) {
  return section.offset <= file_bytes && section.bytes <= file_bytes - section.offset;
}

absl::Status DamagedFile(const std::string& path, std::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": packed file is damaged: ", ToAbsl(what),
                                          "; delete it, and it will be rebuilt from its GGUF"));
}

// Checks magic, version and the trailer's own checksum. `bytes` hold at least a trailer.
absl::StatusOr<PackedTrailer> ParseTrailer(const std::string& path,
                                           std::span<const std::byte> bytes) {
  PackedTrailer trailer;
  std::memcpy(&trailer, bytes.data(), sizeof(trailer));
  if (trailer.magic != kPackedMagic) return DamagedFile(path, "its end is missing");
  if (trailer.version != kPackedVersion) {
    return DamagedFile(path, absl::StrCat("its version is ", trailer.version,
                                          ", this program reads version ", kPackedVersion));
  }
  PackedTrailer zeroed = trailer;
  zeroed.trailer_crc = 0;
  if (Crc32c(0, std::as_bytes(std::span(&zeroed, 1))) != trailer.trailer_crc) {
    return DamagedFile(path, "the trailer's checksum does not match");
  }
  return trailer;
}

absl::StatusOr<PackedTrailer> ReadTrailer(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ErrnoError(absl::StrCat("open ", path));
  std::array<std::byte, sizeof(PackedTrailer)> bytes{};
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return ErrnoError(absl::StrCat("stat ", path));
  const off_t offset = status.st_size - static_cast<off_t>(kPackedPage);
  if (offset < 0) return DamagedFile(path, "it is shorter than a trailer");
  const ssize_t got = pread(file.get(), bytes.data(), bytes.size(), offset);
  if (got < 0) return ErrnoError(absl::StrCat("read ", path));
  if (static_cast<size_t>(got) < bytes.size()) return DamagedFile(path, "its end is missing");
  return ParseTrailer(path, bytes);
}

}  // namespace

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
  WITHY_RETURN_IF_ERROR(file->Map());
  WITHY_RETURN_IF_ERROR(file->ReadSections(verify));
  WITHY_RETURN_IF_ERROR(file->ReadTable());
  WITHY_RETURN_IF_ERROR(file->CheckData(file->Section(file->trailer_.data), verify));
  return file;
}

PackedFile::~PackedFile() {
  metadata_.reset();
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

absl::Status PackedFile::Damaged(std::string_view what) const { return DamagedFile(path_, what); }

absl::Status PackedFile::Map() {
  const UniqueFd file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ErrnoError(absl::StrCat("open ", path_));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return ErrnoError(absl::StrCat("stat ", path_));
  const auto size = static_cast<uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size < kPackedPage) {
    return Damaged("it is shorter than a trailer");
  }
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoError(absl::StrCat("map ", path_));
  bytes_ = {static_cast<const std::byte*>(mapping), size};
  return absl::OkStatus();
}

absl::Status PackedFile::ReadSections(Verify verify) {
  WITHY_ASSIGN_OR_RETURN(trailer_, ParseTrailer(path_, bytes_.last(kPackedPage)));
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
  if (Crc32c(0, Section(trailer_.table)) != trailer_.table_crc ||
      Crc32c(0, Section(trailer_.metadata)) != trailer_.metadata_crc ||
      Crc32c(0, Section(trailer_.checksums)) != trailer_.checksums_crc) {
    return Damaged("the checksum of its table, metadata or checksums does not match");
  }
  const std::span<const std::byte> metadata = Section(trailer_.metadata);
  auto parsed = GgufFile::FromBytes(
      {reinterpret_cast<const uint8_t*>(metadata.data()), metadata.size()}, path_);
  if (!parsed.ok()) return Damaged(absl::StrCat("its metadata: ", parsed.status().message()));
  metadata_ = std::make_unique<GgufFile>(*std::move(parsed));
  return absl::OkStatus();
}

absl::Status PackedFile::ReadTable() {
  const std::span<const std::byte> table = Section(trailer_.table);
  const size_t count = table.size() / sizeof(PackedEntry);
  tensors_.reserve(count);  // index_ refers to the names, which must not move
  for (size_t i = 0; i < count; ++i) {
    PackedEntry entry;
    std::memcpy(&entry, table.data() + i * sizeof(PackedEntry), sizeof(entry));
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
    if (entry.type > static_cast<uint32_t>(WeightType::kQ4M)) return damaged("unknown type");
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

absl::Status PackedFile::MoveToMemory() {
  const UniqueFd file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return ErrnoError(absl::StrCat("open ", path_));
  WITHY_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(trailer_.data.bytes));
  WITHY_RETURN_IF_ERROR(ReadWeights(file.get(), trailer_.data.offset, memory.bytes()));
  WITHY_RETURN_IF_ERROR(CheckData(memory.bytes(), Verify::kFull));
  WITHY_RETURN_IF_ERROR(memory.Seal());
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

absl::Status PackedFile::CheckData(std::span<const std::byte> data, Verify verify) const {
  const std::span<const std::byte> checksums = Section(trailer_.checksums);
  const uint64_t blocks = checksums.size() / 4;
  const uint64_t step = verify == Verify::kFull ? 1 : std::max<uint64_t>(1, blocks / kSampleBlocks);
  for (uint64_t block = 0; block < blocks; block += step) {
    const uint64_t begin = block * kPackedChecksumBlock;
    const uint64_t size = std::min(kPackedChecksumBlock, data.size() - begin);
    WITHY_RETURN_IF_ERROR(CheckBlock(block, data.subspan(begin, size)));
  }
  return absl::OkStatus();
}

absl::Status PackedFile::CheckBlock(uint64_t block, std::span<const std::byte> bytes) const {
  uint32_t expected = 0;
  std::memcpy(&expected, Section(trailer_.checksums).data() + block * 4, 4);
  if (Crc32c(0, bytes) == expected) return absl::OkStatus();
  return Damaged(absl::StrCat("the checksum of its data at byte ",
                              trailer_.data.offset + block * kPackedChecksumBlock,
                              " does not match"));
}

const PackedTensor* PackedFile::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

std::string PackedFile::model_id() const {
  return absl::StrFormat("%016x%016x", trailer_.model_id[0], trailer_.model_id[1]);
}

}  // namespace withy::engine
