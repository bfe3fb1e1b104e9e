// withy-store-repair STATE_DIR: repairs the records of a stopped service. `withyctl store repair`
// runs it.
#include <ctime>
#include <iostream>
#include <string>

#include "base/status.h"
#include "context_store/records/record_repair.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: withy-store-repair STATE_DIR (stop the service first)\n";
    return 2;
  }
  const std::string records = std::string(argv[1]) + "/records";
  const auto report = withy::context_store::RepairRecords(records, std::time(nullptr));
  if (!report.ok()) {
    std::cerr << "withy-store-repair: " << report.status().message() << "\n";
    return 1;
  }
  if (report->was_intact) {
    std::cout << records << " opens: nothing was changed\n";
    return 0;
  }
  std::cout << records << " is repaired: " << report->records << " records are readable ("
            << report->apps << " apps, " << report->contexts << " contexts), " << report->damaged
            << " are damaged; records that were deleted shortly before the damage may be back. As "
            << "it was it is kept in " << report->kept
            << ": remove that once all is well. Start the service\n";
  return 0;
}
