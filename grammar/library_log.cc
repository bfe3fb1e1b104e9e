#include "grammar/library_log.h"

#include <stdexcept>

namespace withy::grammar {
namespace {

thread_local LibraryWarnings* collecting = nullptr;

}  // namespace

LibraryWarnings::LibraryWarnings() { collecting = this; }
LibraryWarnings::~LibraryWarnings() { collecting = nullptr; }

static void Collect(const std::string& message) {
  if (collecting != nullptr) collecting->Add(message);
}

}  // namespace withy::grammar

// XGrammar's sources are compiled with XGRAMMAR_LOG_CUSTOMIZE: it calls these two. Its headers that
// declare them are not public.
namespace xgrammar {

constexpr int kWarningLevel = 2;

[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*line*/,
                               const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level,
                    const std::string& message) {
  if (level >= kWarningLevel) withy::grammar::Collect(message);
}

}  // namespace xgrammar
