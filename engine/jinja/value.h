// Values of a template: Python's None, bool, int (64 bits), float, str, list, tuple and dict, with
// Jinja's undefined, namespaces, loops and callables. Lists and dicts never change once made, as in
// the sandbox that published templates are written for; only namespaces do. Neighbours: text.h
// (strings), operators.h (what Python does with values), json.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/jinja/text.h"

namespace withy::jinja {

class Value;
class Dict;
struct Sequence;
struct Namespace;
struct LoopState;
struct Callable;

enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kLoop,
  kCallable,
};

// Cheap to copy: strings and containers are shared.
class Value {
 public:
  Value() : data_(UndefinedName{}) {}
  // `what` is said when the value is used: "'x' is undefined".
  static Value Undefined(std::string what);
  static Value None() { return Value(Data(std::in_place_type<std::nullptr_t>)); }
  static Value Bool(bool value) { return Value(Data(value)); }
  static Value Int(int64_t value) { return Value(Data(value)); }
  static Value Float(double value) { return Value(Data(value)); }
  static Value String(Text text);
  static Value String(std::string_view text, int32_t source = kFromTemplate) {
    return String(Text(text, source));
  }
  static Value List(std::vector<Value> items);
  static Value Tuple(std::vector<Value> items);
  static Value Of(Dict dict);
  static Value Of(Namespace* space) { return Value(Data(space)); }  // outlives the value
  static Value Of(std::shared_ptr<const LoopState> loop) { return Value(Data(std::move(loop))); }
  static Value Of(Callable callable);
  static std::shared_ptr<const Sequence> Share(Sequence sequence);

  Kind kind() const;
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_sequence() const { return kind() == Kind::kList || kind() == Kind::kTuple; }
  bool is_dict() const { return kind() == Kind::kDict; }
  bool is_number() const;   // bool, int or float
  bool is_integer() const;  // bool or int

  // Each needs its kind.
  const std::string& undefined_name() const;
  int64_t integer() const;  // of a bool: 0 or 1
  double number() const;
  const Text& text() const;
  const std::vector<Value>& items() const;
  const Dict& dict() const;
  Namespace& space() const { return *std::get<Namespace*>(data_); }
  const LoopState& loop() const;
  const Callable& callable() const;

  // Levels of containers in it; 0 for scalars.
  int depth() const;
  // About how many bytes it takes to write it out, at least 8. A list that holds another one twice
  // counts it twice.
  size_t weight() const;

 private:
  struct UndefinedName {
    std::shared_ptr<const std::string> what;
  };
  using Data = std::variant<UndefinedName, std::nullptr_t, bool, int64_t, double,
                            std::shared_ptr<const Text>, std::shared_ptr<const Sequence>,
                            std::shared_ptr<const Dict>, Namespace*,
                            std::shared_ptr<const LoopState>, std::shared_ptr<const Callable>>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

// Shared ones are destroyed level by level (value.cc), however deep they are.
struct Sequence {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  size_t weight = 0;
};

// Keeps the order of insertion.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  // Replaces the value of an equal key. Errors: INVALID_ARGUMENT for a key that has no hash.
  absl::Status Set(const Value& key, Value value);
  void Set(std::string_view key, Value value);
  // Null if there is none.
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  size_t weight() const { return weight_; }

 protected:
  std::vector<Entry> entries_;

 private:
  void SetAt(std::string hash, Value key, Value value);

  std::unordered_map<std::string, size_t> index_;  // by KeyHash
  int depth_ = 1;
  size_t weight_ = 0;
};

// What {% set ns.x = … %} changes. Owned by the interpreter.
struct Namespace {
  Dict values;
};

// `loop` inside a for.
struct LoopState {
  std::shared_ptr<const Sequence> items;
  size_t index = 0;
  int depth = 1;  // nested loops, from 1
};

struct MacroStatement;
struct Scope;

// What can be called: a macro, a function of the environment, or a method of a value.
struct Callable {
  enum class Type { kMacro, kFunction, kMethod };
  Type type = Type::kFunction;
  std::string name;                       // of the function or method
  Value receiver = {};                    // of the method
  const MacroStatement* macro = nullptr;  // part of the program
  Scope* scope = nullptr;                 // where the macro was defined; owned by the interpreter
};

// Python's names: "str", "int", "NoneType", …
std::string_view TypeName(const Value& value);

bool Truth(const Value& value);

// Python's str() and repr(). Strings keep their sources.
Text Str(const Value& value);
Text Repr(const Value& value);
// repr() of a float.
std::string FloatRepr(double value);

}  // namespace withy::jinja
