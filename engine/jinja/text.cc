#include "engine/jinja/text.h"

#include <algorithm>

namespace withy::jinja {

Text::Text(std::string_view bytes, int32_t source) { Append(bytes, source); }

// Starts a run at the end of the text unless the last run goes on there.
void Text::Continue(int32_t source, size_t offset) {
  if (source < 0) offset = 0;
  if (!runs_.empty()) {
    const Run& last = runs_.back();
    const bool follows = source < 0 || last.offset + (bytes_.size() - last.begin) == offset;
    if (last.source == source && follows) return;
  }
  runs_.push_back({bytes_.size(), source, offset});
}

void Text::Append(std::string_view bytes, int32_t source) {
  if (bytes.empty()) return;
  Continue(source, 0);
  bytes_.append(bytes);
}

const Text::Run& Text::RunAt(size_t at) const {
  return *std::prev(
      std::upper_bound(runs_.begin(), runs_.end(), at,
                       [](size_t value, const Run& run) { return value < run.begin; }));
}

void Text::Append(const Text& other, size_t begin, size_t end) {
  end = std::min(end, other.size());
  if (begin >= end) return;
  for (const Run* run = &other.RunAt(begin); begin < end; ++run) {
    const bool last = run + 1 == other.runs_.data() + other.runs_.size();
    const size_t stop = last ? end : std::min(end, (run + 1)->begin);
    Continue(run->source, run->offset + (begin - run->begin));
    bytes_.append(other.bytes_, begin, stop - begin);
    begin = stop;
  }
}

void Text::AppendInPlaceOf(const Text& from, size_t at, std::string_view bytes) {
  if (bytes.empty()) return;
  if (from.empty()) return Append(bytes);
  const Run& run = from.RunAt(std::min(at, from.size() - 1));
  Continue(run.source, run.offset + (at - run.begin));
  bytes_.append(bytes);
}

Text Text::Sub(size_t begin, size_t end) const {
  Text part;
  part.Append(*this, begin, end);
  return part;
}

std::vector<Text::Piece> Text::Pieces() const {
  std::vector<Piece> pieces;
  pieces.reserve(runs_.size());
  for (size_t i = 0; i < runs_.size(); ++i) {
    const size_t end = i + 1 < runs_.size() ? runs_[i + 1].begin : bytes_.size();
    const std::string_view text =
        std::string_view(bytes_).substr(runs_[i].begin, end - runs_[i].begin);
    pieces.push_back({text, runs_[i].source, runs_[i].offset});
  }
  return pieces;
}

}  // namespace withy::jinja
