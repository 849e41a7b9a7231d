"""The ends of an online softmax in CUDA C++: what a row's scores are shifted by, and its LSE.

    shift_of(top)         top, the largest score so far, or 0 of a row that has seen no key: then
                          its maximum is -inf, and a shift of 0 keeps its weights 0
    divided(by, total)    by / total, and 0 of a row that saw no key
    lse_of(top, total)    ln sum_n 2^score[n], with total = sum of 2^(score - top); scores are base
                          2, an LSE natural as everywhere here, -inf where no key was seen

A sum that is NaN is no 0: what a bad key spoils does not pass for a row or a part without keys.
"""

SOFTMAX = r"""
__device__ inline float shift_of(const float top) {
  return top == __int_as_float(0xff800000) ? 0.f : top;
}
__device__ inline float divided(const float by, const float total) {
  return total == 0.f ? 0.f : by / total;
}
__device__ inline float lse_of(const float top, const float total) {
  return total == 0.f ? __int_as_float(0xff800000) : (top + log2f(total)) * 0.69314718f;
}
"""
