// Turns a matrix with its sources and outputs, as Coder::combine() takes them, into the arguments of the GPU kernel
// that encodes parity. It runs on the host, so tests need no GPU.
#pragma once

#include <span>

#include "kernels/coder.hpp"
#include "kernels/parity_body.hpp"

namespace ckpt::kernels::device {

// There must be one source for each column of the matrix, and one output for each row. Otherwise throws
// std::invalid_argument. Also throws it if an output asks for digests: kernels/digest_cuda.hpp makes those.
ParityJob make_parity_job(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                          std::size_t length_bytes, bool to_sum);

// True if the job has one row, with all coefficients one. Then xor_vector() can do it.
bool is_xor(const ParityJob& job, std::size_t rows);

}  // namespace ckpt::kernels::device
