#include "device/cuda_path.hpp"

#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "device/cuda_carrier.hpp"
#include "device/nccl_environment.hpp"

namespace ckpt::device {

CudaPath::CudaPath(int ordinal, const Group& group, const Settings& settings, const char* const* environment,
                   Failed failed)
    : carrier_(std::make_shared<Carrier>(group, settings, std::move(failed))) {
  refuse_nccl_overrides(environment);
  const auto context = std::make_shared<const Context>(ordinal);
  try {
    watchdog_ = std::make_unique<LeavableThread>("ckpt-path-dog", [carrier = carrier_]() { carrier->watch_thread(); });
    thread_ = std::make_unique<LeavableThread>("ckpt-path", [carrier = carrier_, context]() { carrier->run(context); });
  } catch (const std::system_error& error) {
    carrier_->leave();
    throw Failure(CKPT_ERR_SYSTEM, std::string("there is no thread for what goes from GPU to GPU: ") + error.what());
  }
}

CudaPath::~CudaPath() {
  const Deadline deadline = carrier_->stop();
  thread_->join(deadline);
  watchdog_->join(deadline);
  carrier_->tell();  // unless that was done: what is told later might find its listener gone
}

bool CudaPath::wait_to_meet(Deadline deadline) { return carrier_->wait_to_meet(deadline); }
bool CudaPath::begin(Exchange exchange) { return carrier_->begin(std::move(exchange)); }
void CudaPath::allow(std::uint64_t number, std::uint64_t steps) { carrier_->allow(number, steps); }
void CudaPath::finish(std::uint64_t number) { carrier_->finish(number); }
void CudaPath::give_up(const std::string& why) { carrier_->give_up(why); }
bool CudaPath::works() const { return carrier_->works(); }

}  // namespace ckpt::device
