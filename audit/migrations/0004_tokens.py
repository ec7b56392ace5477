"""Events of tokens: issued, revoked, their end set."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('audit', '0003_corrected'),
    ]

    operations = [
        migrations.AlterField(
            model_name='event',
            name='kind',
            field=models.CharField(choices=[('node.registered', 'Node registered'), ('node.inventory', 'Node inventory changed'), ('node.health', 'Node health changed'), ('node.removed', 'Node removed'), ('device.health', 'Device health changed'), ('device.taken', 'Device taken by a stranger'), ('claim.created', 'Claim created'), ('claim.changed', 'Claim changed'), ('claim.deleted', 'Claim deleted'), ('claim.renewed', 'Claim renewed'), ('allocation.held', 'Devices held'), ('allocation.reserved', 'Devices reserved'), ('allocation.bound', 'Pod bound'), ('allocation.releasing', 'Devices being returned'), ('allocation.released', 'Devices returned'), ('allocation.failed', 'Attempt failed, devices returned'), ('allocation.adopted', 'Running pod adopted'), ('allocation.corrected', 'Devices are others than written'), ('allocation.evicted', 'Pod asked to go'), ('allocation.expired', 'Time of the allocation ended'), ('pod.refused', 'Pod cannot be placed'), ('reconcile.difference', 'Ledger and cluster differ'), ('access.changed', 'Access changed'), ('access.token-issued', 'Token issued'), ('access.token-revoked', 'Token revoked'), ('access.token-end-set', 'End of a token set'), ('access.signed-in', 'Signed in'), ('access.sign-in-failed', 'Sign-in failed')], max_length=48),
        ),
    ]
