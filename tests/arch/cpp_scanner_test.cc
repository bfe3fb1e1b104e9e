#include "tests/arch/cpp_scanner.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::arch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Functions(const ScannedFile& file) {
  std::vector<std::string> functions;
  for (const ScannedFunction& of : file.functions) {
    functions.push_back(of.name + " " + std::to_string(of.lines));
  }
  return functions;
}

std::vector<std::string> Classes(const ScannedFile& file) {
  std::vector<std::string> classes;
  for (const ScannedClass& of : file.classes) {
    classes.push_back(of.name + " " + std::to_string(of.methods));
  }
  return classes;
}

TEST(CppScanner, LeavesOutCommentsLiteralsAndThePreprocessorButNoLine) {
  EXPECT_EQ(WithoutComments("int a;  // {\nint b; /* {\n{ */ int c;\n"),
            "int a;  \nint b; \n  int c;\n");
  EXPECT_EQ(WithoutComments("#define OPEN { \\\n  {\nint a;"), "\n\nint a;");
  EXPECT_EQ(WithoutComments(R"src(f("{\"{", '{', '\'', 1'000'000);)src"),
            R"src(f("", 0, 0, 1'000'000);)src");
  EXPECT_EQ(WithoutComments("auto s = R\"x({ )\" \n)x\";"), "auto s = R\n\"\";");
}

TEST(CppScanner, CountsTheLinesOfFunctions) {
  const ScannedFile file = ScanCpp(R"src(
namespace withy {
namespace {
int One() { return 1; }
}  // namespace
template <typename T, int kSize = (3 > 2)>
const std::vector<std::function<int(T)>>& Bar<T>::Long(
    const T& options = {}, int b = 3) const
    noexcept(true) {
  if (b < 2) {
    auto f = [&] { return "}"; };
  }
  return 2;
}
Bar::Bar(int a) : a_(a), b_{a}, c_<int>{1} {
  Start();
}
Bar::~Bar() = default;
bool Bar::operator()(int a) const { return a; }
bool operator==(const Bar& a, const Bar& b) {
  return true;
}
const int kTable[] = {1, 2,
                      3};
const auto kFunction = [](int a) {
  return a;
};
TEST(Suite, Case) {
  Run();
}
extern "C" int Plain(void) { return 0; }
extern "C" {
void Other(struct stat* s) {}
}
struct stat Returned(int a) {
  return {};
}
int Declared(int a);
}  // namespace withy
)src");
  EXPECT_TRUE(file.balanced);
  EXPECT_THAT(Functions(file),
              ElementsAre("One 0", "Bar::Long 5", "Bar::Bar 2", "Bar::operator() 0", "operator== 2",
                          "TEST 2", "Plain 0", "Other 0", "Returned 2"));
  EXPECT_EQ(file.functions[1].line, 9);
  EXPECT_THAT(Classes(file), IsEmpty());
}

TEST(CppScanner, CountsTheMethodsOfClasses) {
  const ScannedFile file = ScanCpp(R"src(
class Forward;
class ABSL_LOCKABLE Counted final : public Base<int(int)>, private Other {
 public:
  Counted();
  explicit Counted(int a) : a_(a) {}
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() override;
  bool operator==(const Counted&) const = default;
  friend bool Same(const Counted& a, const Counted& b);
  using Callback = std::function<void(int)>;
  using Base::Base;
  enum class State : uint8_t { kOne, kTwo };

  virtual void Pure(int a = {}) = 0;                                   // 1
  [[nodiscard]] absl::StatusOr<std::map<int, int>> Find(int a) const;  // 2
  static int Make() { return 1; }                                      // 3
  int a() const { return a_; }                                         // 4
  operator bool() const;                                               // 5
  bool operator<(const Counted& other) const;                          // 6
  template <typename T>
  void Generic(T&& t) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);           // 7
  auto Trailing() const -> std::pair<int, int>;                        // 8

 protected:
  struct Inner {
    int Sum() const { return x + y; }
    int x = 0, y = 0;
  };
  // void Commented();
  void Private(std::function<void()> done) const&;                     // 9

 private:
  void Overloaded(int a);                                              // 10
  void Overloaded(double a);                                           // 11

  int a_ ABSL_GUARDED_BY(mutex_) = 0;
  Inner inner_ ABSL_GUARDED_BY(mutex_);
  std::function<int(int)> function_ = [](int b) { return b; };
  void (*pointer_)(int) = nullptr;
  const int table_[2] = {Make(), Make()};
  alignas(64) std::atomic<int> atomic_{0};
  static_assert(sizeof(int) == 4);
  MOCK_METHOD(void, Mocked, (int a), (override));
};
)src");
  EXPECT_TRUE(file.balanced);
  EXPECT_THAT(Classes(file), ElementsAre("Counted::Inner 1", "Counted 11"));
}

TEST(CppScanner, SaysWhereBracketsDoNotMatch) {
  EXPECT_FALSE(ScanCpp("void f() { if (a) {").balanced);
  EXPECT_FALSE(ScanCpp("void f() { } }").balanced);
  EXPECT_FALSE(ScanCpp("class A { void f(int a]; };").balanced);
  EXPECT_TRUE(ScanCpp("").balanced);
}

}  // namespace
}  // namespace withy::arch
