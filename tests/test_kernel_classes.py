"""Names of kernels fall into the right classes, and become readable."""

import pytest

from ingest.kernel_classes import kind_of, ours, readable, short_name


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        (
            "all_reduce",
            [
                "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()",
                "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
                "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)",
                "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport",
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "void b12x::oneshot_kernel<8>(int)",
                "void aiter::cross_device_reduce_1stage_naive<int>()",
                "lamport_style_one_shot_all_reduce_norm_kernel",
            ],
        ),
        (
            "other_collective",
            [
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)",
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()",
                "void dpsk::ep::internode_ll::dispatch<true, 7168>(void*)",
                "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int)",
                "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
            ],
        ),
        (
            "attention",
            [
                "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128",
                "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>()",
                "kernel_unified_attention_3d",
                "reduce_segments",
                "_fwd_grouped_kernel_stage1",
                "void flashinfer::BatchDecodeWithPagedKVCacheKernel<>()",
                "void flash_mla::flash_fwd_splitkv_mla_kernel<>()",
            ],
        ),
        (
            "moe",
            [
                "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_swiGlu_dynBatch_sm100f",
                "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
                "fused_moe_kernel",
                "void moe::dev::routing::routingIndicesHistogramKernel<int>(int)",
                "triton_poi_fused_constant_pad_nd_moe_forward_0",
                "void marlin_moe_wna16::Marlin<__nv_bfloat16>()",
            ],
        ),
        (
            "dense_gemm",
            [
                "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
                "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256",
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
                "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16>(Params)",
                "void splitKreduce_kernel<32, 16, int, float>()",
            ],
        ),
        (
            "norm_elementwise",
            [
                "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
                "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
                "void tensorrt_llm::kernels::quantize_with_block_size<flashinfer::Layout>(int)",
                "triton_red_fused__to_copy_add_all_reduce_mean_mul_pow_rsqrt_0",
                "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdE",
            ],
        ),
        (
            "other_known",
            [
                "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>()",
                "void split_embedding_codegen_forward_unweighted_kernel<float>()",
                "void cub::DeviceRadixSortOnesweepKernel<int>()",
                "void cub::DeviceScanKernel<int>()",
                "sm80_xmma_fprop_implicit_gemm_conv_bf16_cudnn",
                "void fbgemm_gpu::permute_2D_data_kernel<true>()",
                "triton__0d1d2d3d",
            ],
        ),
        (
            "copy",
            ["Memcpy DtoD (Device -> Device)", "void vllm::reshape_and_cache_kernel<>()"],
        ),
        ("metadata", ["_copy_page_indices_kernel", "create_flashinfer_kv_indices_triton"]),
        ("sampling", ["void TreeSpeculativeSamplingTargetOnly<1024>()", "VerifyTreeGreedy"]),
        ("embedding", ["void at::native::(anonymous namespace)::indexSelectLargeIndex<int>()"]),
        ("unclassified", ["qzx_17", ""]),
    ],
)
def test_kernels_are_in_the_class_that_does_their_work(name: str, kernels: list[str]) -> None:
    assert {kernel: kind_of(kernel, ours()).name for kernel in kernels} == dict.fromkeys(
        kernels, name
    )


def test_every_pattern_tells_its_evidence() -> None:
    assert [one.pattern.pattern for one in ours() if not one.evidence] == []


@pytest.mark.parametrize(
    ("kernel", "short", "long"),
    [
        ("void cutlass::Kernel<gemm_64x64>(Params)", "Kernel", "cutlass::Kernel<gemm_64x64>"),
        (
            "std::enable_if<(((8)>(0)))&&a::exists, void>::type vllm::fused_norm<c10::BFloat16, 8>"
            "(c10::BFloat16*, long)",
            "fused_norm",
            "vllm::fused_norm<BFloat16, 8>",
        ),
        (
            "void at::native::copy<128, f(at::T&)::{lambda(int)#1}>(int, f(at::T&)::{lambda()#1})",
            "copy",
            "at::native::copy<128, f(T&)::{lambda(int)#1}>",
        ),
        ("_matmul_ogs_NNT", "_matmul_ogs_NNT", "_matmul_ogs_NNT"),
        ("Memcpy DtoD (Device -> Device)",) * 3,
        ("(", "(", "("),
        ("a)", "a)", "a)"),
    ],
)
def test_a_name_loses_return_type_and_parameters(kernel: str, short: str, long: str) -> None:
    assert short_name(kernel) == short
    assert readable(kernel) == long


def test_a_long_name_keeps_both_ends() -> None:
    name = readable("a" * 500 + "b" * 500)
    assert len(name) == 120
    assert name.startswith("aaa")
    assert name.endswith("bbb")
