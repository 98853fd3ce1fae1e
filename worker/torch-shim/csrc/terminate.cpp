// The end of a process in which a destructor throws, as destructors of a GPU's tensors do once the GPU has failed: the
// C++ library would abort.
#include "boundary.h"

#include <unistd.h>

#include <atomic>
#include <exception>

namespace {

std::atomic<void (*)(DtText)> last_words{nullptr};

[[noreturn]] void end_process() {
  // Other threads may throw while the first one reports.
  static std::atomic<bool> ends{false};
  while (ends.exchange(true)) ::pause();
  const auto thrown = std::current_exception();
  if (!thrown) std::abort();
  std::string message = "an unknown C++ exception";
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
  }
  last_words.load()({message.data(), message.size()});
  // Without destructors, which would throw again.
  std::_Exit(1);
}

}  // namespace

extern "C" void dt_on_terminate(void (*report)(DtText)) {
  last_words = report;
  std::set_terminate(end_process);
}
