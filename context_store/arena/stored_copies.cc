#include "context_store/arena/stored_copies.h"

namespace withy::context_store {

void StoredCopies::GiveUp(StoredCopy copy) {
  const auto several = shared_.find(copy);
  if (several == shared_.end()) {
    given_up_.push_back(copy);
    not_indexed_.erase(copy);
  } else if (--several->second == 1) {
    shared_.erase(several);
  }
}

void StoredCopies::Forget(StoredCopy copy) {
  shared_.erase(copy);
  not_indexed_.erase(copy);
}

void StoredCopies::ForgetAll() {
  shared_.clear();
  not_indexed_.clear();
}

void StoredCopies::Borrow(ContextChunk* chunk, const ContextChunk& equal) {
  if (chunk->stored != 0 || equal.stored == 0) return;
  // It may not be hidden here what that copy lacks.
  const KvFormat own = chunk->slot.has_value() ? chunk->slot->format : chunk->stored_format;
  if (LacksBlocks(equal.stored_format) && !LacksBlocks(own)) return;
  ++shared_.try_emplace(equal.stored, 1).first->second;
  chunk->stored = equal.stored;
  chunk->stored_format = equal.stored_format;
}

}  // namespace withy::context_store
