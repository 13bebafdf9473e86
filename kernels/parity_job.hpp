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

// True if the job has one row, in which all coefficients are 1. Then the faster xor_vector() can do the job.
bool is_xor(const ParityJob& job, std::size_t rows);

}  // namespace ckpt::kernels::device
