/*
 * Kernels of our own, as PTX for any card since compute capability 7.0.
 *   spin(u64 ns): occupies the device for a time
 *   mul(u64 rounds, ptr): arithmetic on all multiprocessors, as a matrix product does
 *   copy(u64 words, ptr): moves words of a buffer, bound by memory
 */
#ifndef TOOL_KERNELS_H
#define TOOL_KERNELS_H

static const char kernels[] =
    ".version 6.4\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns)\n{\n"
    " .reg .u64 %t<4>; .reg .pred %p;\n"
    " ld.param.u64 %t0, [ns];\n mov.u64 %t1, %globaltimer;\n"
    "again: mov.u64 %t2, %globaltimer;\n sub.u64 %t3, %t2, %t1;\n setp.lt.u64 %p, %t3, %t0;\n"
    " @%p bra again;\n ret;\n}\n"
    ".visible .entry mul(.param .u64 rounds, .param .u64 out)\n{\n"
    " .reg .u64 %n<4>; .reg .f32 %a<9>; .reg .pred %p; .reg .u32 %i<5>;\n"
    " ld.param.u64 %n0, [rounds];\n mov.u64 %n1, 0;\n mov.u32 %i0, %tid.x;\n cvt.rn.f32.u32 %a0, %i0;\n"
    " mov.f32 %a1, %a0; mov.f32 %a2, %a0; mov.f32 %a3, %a0; mov.f32 %a4, %a0;\n"
    " mov.f32 %a5, 0f3F7FFFFE; mov.f32 %a6, 0f33800000;\n"
    "again: fma.rn.f32 %a1, %a1, %a5, %a6;\n fma.rn.f32 %a2, %a2, %a5, %a6;\n"
    " fma.rn.f32 %a3, %a3, %a5, %a6;\n fma.rn.f32 %a4, %a4, %a5, %a6;\n"
    " add.u64 %n1, %n1, 1;\n setp.lt.u64 %p, %n1, %n0;\n @%p bra again;\n"
    " add.f32 %a1, %a1, %a2; add.f32 %a3, %a3, %a4; add.f32 %a1, %a1, %a3;\n"
    " ld.param.u64 %n2, [out];\n cvta.to.global.u64 %n2, %n2;\n"
    " mov.u32 %i1, %ctaid.x; mov.u32 %i2, %ntid.x; mad.lo.u32 %i3, %i1, %i2, %i0;\n"
    " mul.wide.u32 %n3, %i3, 4; add.u64 %n2, %n2, %n3;\n st.global.f32 [%n2], %a1;\n ret;\n}\n"
    ".visible .entry copy(.param .u64 words, .param .u64 data)\n{\n"
    " .reg .u64 %n<6>; .reg .u32 %i<5>; .reg .f32 %a<2>; .reg .pred %p;\n"
    " ld.param.u64 %n0, [words]; ld.param.u64 %n1, [data]; cvta.to.global.u64 %n1, %n1;\n"
    " mov.u32 %i0, %tid.x; mov.u32 %i1, %ctaid.x; mov.u32 %i2, %ntid.x; mov.u32 %i4, %nctaid.x;\n"
    " mad.lo.u32 %i3, %i1, %i2, %i0; cvt.u64.u32 %n2, %i3; mul.wide.u32 %n4, %i2, %i4;\n"
    "again: setp.ge.u64 %p, %n2, %n0;\n @%p bra done;\n"
    " shl.b64 %n3, %n2, 2; add.u64 %n5, %n1, %n3;\n"
    " ld.global.f32 %a0, [%n5]; add.f32 %a0, %a0, 0f3F800000; st.global.f32 [%n5], %a0;\n"
    " add.u64 %n2, %n2, %n4;\n bra again;\n"
    "done: ret;\n}\n";

#endif
