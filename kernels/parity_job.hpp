// Turns a matrix with its sources and outputs, as Coder::combine() takes them, into the arguments of the GPU kernel
// that encodes parity. It runs on the host, so tests need no GPU.
#pragma once

#include <span>

#include "kernels/coder.hpp"
#include "kernels/parity_body.hpp"

namespace ckpt::kernels::device {

// Returns the arguments of the kernel's launch. Throws std::invalid_argument unless there are one source for each
// column of the matrix and one output for each row. It also throws this if an output asks for digests: digest_leaves()
// (kernels/digest_cuda.hpp) computes them.
ParityJob make_parity_job(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                          std::size_t length_bytes, bool to_sum);

// True if all coefficients of the job's first row are 1. Then the faster Outputs with `is_first_plain` can do the job.
bool is_first_plain(const ParityJob& job);

// Calls `launch` with the Outputs that the job makes, as an object.
template <class Launch>
auto with_outputs(const ParityJob& job, std::size_t rows, Launch launch) {
  if (is_first_plain(job)) {
    switch (rows) {
      case 1:
        return launch(Outputs<1, true>{});
      case 2:
        return launch(Outputs<2, true>{});
      case 3:
        return launch(Outputs<3, true>{});
      default:
        return launch(Outputs<4, true>{});
    }
  }
  switch (rows) {
    case 1:
      return launch(Outputs<1, false>{});
    case 2:
      return launch(Outputs<2, false>{});
    case 3:
      return launch(Outputs<3, false>{});
    default:
      return launch(Outputs<4, false>{});
  }
}

}  // namespace ckpt::kernels::device
