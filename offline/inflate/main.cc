// withy-inflate: grows a small model to a published shape without changing its function.
//   withy-inflate --model=pocket-elastic.gguf --shape=smollm2-135m --out=pocket-135m.gguf
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/progress_line.h"
#include "base/status.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/split.h"
#include "offline/inflate/inflate.h"

ABSL_FLAG(std::string, model, "", "GGUF to grow, plain or elastic");
ABSL_FLAG(std::string, shape, "smollm2-135m",
          "smollm2-135m, smollm2-360m, tinyllama-1.1b or llama3.2-3b");
ABSL_FLAG(std::string, out, "", "GGUF to write");
ABSL_FLAG(uint64_t, seed, 1, "seed of the weights that have no effect");

namespace withy::inflate {
namespace {

absl::Status Run() {
  const std::string model = absl::GetFlag(FLAGS_model);
  const std::string out = absl::GetFlag(FLAGS_out);
  const std::string name = absl::GetFlag(FLAGS_shape);
  if (model.empty() || out.empty()) {
    return absl::InvalidArgumentError("needs --model=FILE.gguf and --out=FILE.gguf");
  }
  WITHY_ASSIGN_OR_RETURN(const TargetShape shape, FindTargetShape(name));
  WITHY_RETURN_IF_ERROR(CheckOutput(out, engine::GgufPartPaths(model)));
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(model));
  WITHY_ASSIGN_OR_RETURN(const engine::ModelShape source, engine::ReadShape(file));
  const HeadCounts heads = FitHeads(source, shape);
  if (heads.heads != shape.heads || heads.kv_heads != shape.kv_heads) {
    std::printf("%d query heads on %d KV heads in place of %d on %d: a group of %d needs room\n",
                heads.heads, heads.kv_heads, shape.heads, shape.kv_heads,
                source.query_heads_per_group());
  }
  StepProgress line;
  WITHY_RETURN_IF_ERROR(
      Inflate(file, shape, name, absl::GetFlag(FLAGS_seed), out, [&](uint64_t done, uint64_t all) {
        line.Show("writing", absl::StrFormat("writing %.0f MB", static_cast<double>(all) / 1e6),
                  static_cast<int64_t>(done), static_cast<int64_t>(all));
      }));
  line.End();
  std::printf("%s: %d layers, width %d, %d neurons\n", out.c_str(), shape.layers, shape.d_model,
              shape.d_ff);
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::inflate

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Grows a small model to a published shape without changing its function.\n"
      "usage: withy-inflate --model small.gguf --shape smollm2-135m --out large.gguf",
      argc, argv);
  const absl::Status status = withy::inflate::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "withy-inflate: %s\n", std::string(status.message()).c_str());
  return 1;
}
